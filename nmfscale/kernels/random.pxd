"""Random numbers: xoshiro256++ of Blackman and Vigna, seeded by four words; bounded integers."""
from libc.stdint cimport uint32_t, uint64_t

cdef struct generator:
    uint64_t state[4]


cdef inline uint64_t rotated(uint64_t x, int n) noexcept nogil:
    return (x << n) | (x >> (64 - n))


cdef inline uint64_t next_word(generator *g) noexcept nogil:
    cdef uint64_t *s = g.state
    cdef uint64_t found = rotated(s[0] + s[3], 23) + s[0]
    cdef uint64_t t = s[1] << 17
    s[2] ^= s[0]
    s[3] ^= s[1]
    s[1] ^= s[2]
    s[0] ^= s[3]
    s[2] ^= t
    s[3] = rotated(s[3], 45)
    return found


cdef inline uint32_t below(generator *g, uint32_t n) noexcept nogil:
    """Return a uniform random integer from 0 to n - 1 (method of Lemire)."""
    cdef uint64_t product = (next_word(g) >> 32) * n
    cdef uint32_t least
    if <uint32_t>product < n:
        least = (<uint32_t>(0) - n) % n
        while <uint32_t>product < least:
            product = (next_word(g) >> 32) * n
    return <uint32_t>(product >> 32)
