"""A link with a delay, losses and a rate, between two network devices that it makes."""

import fcntl
import heapq
import os
import random
import select
import struct
import sys
import time

TUNSETIFF, TAP, NO_HEADER = 0x400454CA, 2, 0x1000


def device(name):
    """Return the open end of a new network device."""
    end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(end, TUNSETIFF, struct.pack("16sH", name.encode(), TAP | NO_HEADER))
    return end


def main(near, far, delay, lost_to, lost_from, rate):
    """Carry frames: shares of those to and from `far` are lost, `rate` is in bytes a second."""
    ends = device(near), device(far)
    loss = dict(zip(ends, (lost_to, lost_from), strict=True))
    other, free = dict(zip(ends, ends[::-1], strict=True)), dict.fromkeys(ends, 0.0)
    rng, waiting, count = random.Random(0), [], 0
    while True:
        due = waiting[0][0] - time.monotonic() if waiting else 1.0
        for end in select.select(ends, [], [], max(0.0, due))[0]:
            frame = os.read(end, 65536)
            if rng.random() < loss[end]:
                continue
            free[end] = max(free[end], time.monotonic()) + len(frame) / rate
            count += 1
            heapq.heappush(waiting, (free[end] + delay, count, other[end], frame))
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, end, frame = heapq.heappop(waiting)
            try:
                os.write(end, frame)
            except OSError:  # the device is down: the frame is lost
                continue


if __name__ == "__main__":
    main(*sys.argv[1:3], *map(float, sys.argv[3:]))
