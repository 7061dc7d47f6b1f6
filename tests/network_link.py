"""A link with delay, losses and limited rate, between two network devices that it creates."""

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


def main(near, far):
    """Carry frames; input lines set delay, shares lost to and from `far`, and bytes per second."""
    ends, control = (device(near), device(far)), sys.stdin.fileno()
    other, free = dict(zip(ends, ends[::-1], strict=True)), dict.fromkeys(ends, 0.0)
    rng, waiting, count = random.Random(0), [], 0
    delay, rate, loss = 0.0, 1e7, dict.fromkeys(ends, 0.0)
    while True:
        due = waiting[0][0] - time.monotonic() if waiting else 1.0
        for end in select.select((control, *ends), [], [], max(0.0, due))[0]:
            if end == control:
                *_, line = os.read(control, 4096).splitlines()
                delay, *lost, rate = map(float, line.split())
                loss = dict(zip(ends, lost, strict=True))
                continue
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
    main(*sys.argv[1:])
