"""Random numbers that depend on the replicate only, not on the worker that computes it.

Replicate r of a job draws from child r of the job's seed, as `SeedSequence.spawn` would give it.
"""

from __future__ import annotations

from numbers import Integral
from typing import Any

import numpy as np
from numpy.random import Generator, RandomState, SeedSequence
from numpy.typing import NDArray

from ...counts.names import shown

# Constants of SeedSequence: O'Neill, Developing a seed_seq alternative.
_INIT_A, _MULTIPLY_A = 0x43B0D7E5, 0x931E8875
_INIT_B, _MULTIPLY_B = 0x8B51F9DD, 0x58F38DED
_MIX_LEFT, _MIX_RIGHT = np.uint32(0xCA01F9DD), np.uint32(0x4973F715)
_POOL, _SHIFT = 4, np.uint32(16)


def seed_of(random_state: Any) -> SeedSequence:
    """Return the seed of a job: fixed for an integer, new each time for None.

    A generator is advanced; a SeedSequence is used as it is.
    """
    if isinstance(random_state, SeedSequence):
        return random_state
    if isinstance(random_state, Generator):
        return SeedSequence(random_state.integers(2**32, size=_POOL).tolist())
    if isinstance(random_state, RandomState):
        return SeedSequence(random_state.randint(2**32, size=_POOL, dtype=np.uint64).tolist())
    if random_state is None:
        return SeedSequence()
    if isinstance(random_state, Integral) and not isinstance(random_state, bool):
        if int(random_state) >= 0:
            return SeedSequence(int(random_state))
    raise ValueError(
        f"random_state={shown(random_state)}: a non-negative integer, a numpy Generator or "
        "RandomState, a SeedSequence or None is needed."
    )


def child(seed: SeedSequence, number: int) -> SeedSequence:
    """Return child `number` of a seed without making the children before it."""
    return SeedSequence(seed.entropy, spawn_key=(*seed.spawn_key, number))


def state_of_fit(seed: SeedSequence, number: int) -> int:
    """Return the `random_state` of fit `number`, below 2**31 - 1."""
    return int(child(seed, number).generate_state(1)[0]) % (2**31 - 1)


def generator(seed: SeedSequence, number: int) -> Generator:
    """Return the generator of replicate `number`."""
    return np.random.default_rng(child(seed, number))


def child_states(seed: SeedSequence, numbers: range) -> NDArray[np.uint64]:
    """Return `child(seed, r).generate_state(4, np.uint64)` for each number r, one row each.

    All states are computed at once: one SeedSequence takes as long as permuting thousands of
    labels.
    """
    if numbers.stop > 2**32:
        raise ValueError(f"{numbers.stop:,} replicates; at most {2**32:,} have seeds.")
    words = np.asarray(numbers, np.uint32)
    pool = SeedSequence(seed.entropy, spawn_key=seed.spawn_key).pool
    # number of updates of the constant before the last word of the key is mixed in
    calls = _POOL * (_POOL + max(0, _n_words(seed) - _POOL))
    constant = _INIT_A * pow(_MULTIPLY_A, calls, 2**32) % 2**32
    mixed = []
    for of_parent in pool:
        value = words ^ np.uint32(constant)
        constant = constant * _MULTIPLY_A % 2**32
        value = value * np.uint32(constant)
        value ^= value >> _SHIFT
        value = np.uint32(of_parent) * np.ones_like(value) * _MIX_LEFT - value * _MIX_RIGHT
        mixed.append(value ^ (value >> _SHIFT))
    out, constant = np.empty((words.size, 2 * _POOL), np.uint32), _INIT_B
    for i in range(2 * _POOL):
        value = mixed[i % _POOL] ^ np.uint32(constant)
        constant = constant * _MULTIPLY_B % 2**32
        value = value * np.uint32(constant)
        out[:, i] = value ^ (value >> _SHIFT)
    low, high = out[:, ::2].astype(np.uint64), out[:, 1::2].astype(np.uint64)
    return low | (high << np.uint64(32))


def _n_words(seed: SeedSequence) -> int:
    """Return the 32-bit words of a seed, followed by the prefix of the keys of its children."""
    entropy_of_seed: Any = seed.entropy
    entropy = entropy_of_seed if hasattr(entropy_of_seed, "__len__") else [entropy_of_seed]
    of_entropy = sum(max(1, -(-int(integer).bit_length() // 32)) for integer in entropy)
    return max(_POOL, of_entropy) + sum(
        max(1, -(-int(integer).bit_length() // 32)) for integer in seed.spawn_key
    )
