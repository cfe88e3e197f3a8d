/* Random numbers that are the same everywhere for the same seed: xorshift64*. The state is not 0.
 */
#include <stdint.h>

struct dice {
	uint64_t state;
};

static inline uint64_t draw(struct dice *dice)
{
	dice->state ^= dice->state >> 12;
	dice->state ^= dice->state << 25;
	dice->state ^= dice->state >> 27;
	return dice->state * 2685821657736338717ull;
}

static inline unsigned below(struct dice *dice, unsigned n)
{
	return (unsigned)(draw(dice) >> 33) % n;
}
