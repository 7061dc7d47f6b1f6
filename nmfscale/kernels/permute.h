/* Random permutations. */
#include <stdint.h>

/* Blackman and Vigna, Scrambled linear pseudorandom number generators: xoshiro256++ */
static inline uint64_t next_random(uint64_t state[4])
{
    const uint64_t sum = state[0] + state[3], shifted = state[1] << 17;
    const uint64_t result = ((sum << 23) | (sum >> 41)) + state[0];
    state[2] ^= state[0];
    state[3] ^= state[1];
    state[1] ^= state[2];
    state[0] ^= state[3];
    state[2] ^= shifted;
    state[3] = (state[3] << 45) | (state[3] >> 19);
    return result;
}

/* One of 0 ... n - 1, each as likely. Lemire, Fast random integer generation in an interval */
static inline uint32_t random_below(uint64_t state[4], uint32_t n)
{
    uint64_t product = (next_random(state) >> 32) * n;
    if ((uint32_t)product < n) {
        const uint32_t least = -n % n;
        while ((uint32_t)product < least)
            product = (next_random(state) >> 32) * n;
    }
    return (uint32_t)(product >> 32);
}

/* The first n_drawn places become a random sample of all n, in random order. */
static inline void draw(uint32_t *order, uint32_t n, uint32_t n_drawn, uint64_t state[4])
{
    for (uint32_t i = 0; i < n_drawn; i++) {
        const uint32_t j = i + random_below(state, n - i), here = order[i];
        order[i] = order[j];
        order[j] = here;
    }
}
