/*
 * The wall clock as adjtimex(2) slews it: frequency, tick, offsets, adjtime(3), leap seconds. It is
 * compared with CLOCK_MONOTONIC_RAW. Needs root, and sets the clock.
 */
#include "promise.h"
#include <sys/timex.h>

static int64_t ns(clockid_t clock)
{
	struct timespec now;
	NEED(clock_gettime(clock, &now) == 0);
	return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static int64_t ns_by_call(void)
{
	struct timespec now;
	NEED(syscall(SYS_clock_gettime, CLOCK_REALTIME, &now) == 0);
	return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static struct timex asked;

static int adjust(struct timex wanted)
{
	asked = wanted;
	return adjtimex(&asked);
}
#define ADJUST(...) adjust((struct timex){ __VA_ARGS__ })

/* Returns by how many thousandths the wall clock is faster, from the present state on. */
static int64_t rate(void)
{
	int64_t real = ns(CLOCK_REALTIME), raw = ns(CLOCK_MONOTONIC_RAW);
	sleep_ms(400);
	real = ns(CLOCK_REALTIME) - real;
	raw = ns(CLOCK_MONOTONIC_RAW) - raw;
	return (real - raw) * 1000 / raw;
}

static int is_rate(int64_t least, int64_t most)
{
	int64_t now = rate();
	return now >= least && now <= most;
}

static void rates(void)
{
	ADJUST(.modes = ADJ_FREQUENCY | ADJ_TICK, .freq = 0, .tick = 10000);
	PROMISE("a frequency is kept", ADJUST(.modes = ADJ_FREQUENCY, .freq = 100 << 16) >= 0 && ADJUST() >= 0 && asked.freq == 100 << 16);
	PROMISE("a negative one, too", ADJUST(.modes = ADJ_FREQUENCY, .freq = -(7 << 16)) >= 0 && ADJUST() >= 0 && asked.freq == -(7 << 16));
	PROMISE("it is at most 500 ppm", ADJUST(.modes = ADJ_FREQUENCY, .freq = 501 << 16) >= 0 && asked.freq == 500 << 16 && asked.tolerance == 500 << 16);
	NEED(ADJUST(.modes = ADJ_FREQUENCY, .freq = 0) >= 0);
	PROMISE("a tick is kept", ADJUST(.modes = ADJ_TICK, .tick = 11000) >= 0 && ADJUST() >= 0 && asked.tick == 11000);
	PROMISE("the clock is faster by a tenth", HOLDS_ONCE(is_rate(90, 110)));
	PROMISE("a tick that is too long", ADJUST(.modes = ADJ_TICK, .tick = 11001) == -1 && errno == EINVAL);
	struct timespec until = soon(CLOCK_REALTIME, 300);
	NEED(clock_nanosleep(CLOCK_REALTIME, TIMER_ABSTIME, &until, NULL) == 0);
	PROMISE("a sleep until a time does not end before", ns(CLOCK_REALTIME) >= until.tv_sec * 1000000000LL + until.tv_nsec);
	NEED(ADJUST(.modes = ADJ_TICK, .tick = 9000) >= 0);
	PROMISE("or slower", HOLDS_ONCE(is_rate(-110, -90)));
	int64_t before = 0, back = 0;
	for (int64_t end = ns(CLOCK_MONOTONIC_RAW) + 1500000000; ns(CLOCK_MONOTONIC_RAW) < end;) {
		int64_t now = before % 2 ? ns_by_call() : ns(CLOCK_REALTIME);
		struct timeval micro;
		gettimeofday(&micro, NULL);
		int64_t then = micro.tv_sec * 1000000000LL + micro.tv_usec * 1000LL;
		time_t second = time(NULL);
		int64_t after = ns(CLOCK_REALTIME);
		back += now < before || then < now - 1000 || after < then || second > after / 1000000000;
		before = after;
	}
	PROMISE("it never goes back, by whatever call", back == 0);
	PROMISE("time(2) follows", HOLDS_ONCE(llabs(time(NULL) - ns(CLOCK_REALTIME) / 1000000000) <= 1));
	NEED(ADJUST(.modes = ADJ_TICK, .tick = 10000) >= 0);
	PROMISE("and goes on at its own rate", HOLDS_ONCE(is_rate(-3, 3)));
}

static void offsets(void)
{
	NEED(ADJUST(.modes = ADJ_STATUS | ADJ_NANO, .status = 0) >= 0);
	PROMISE("without STA_PLL an offset is ignored", ADJUST(.modes = ADJ_OFFSET, .offset = 400000000) >= 0 && asked.offset == 0);
	NEED(ADJUST(.modes = ADJ_STATUS | ADJ_TIMECONST, .status = STA_PLL, .constant = 0) >= 0);
	PROMISE("the time constant is kept", asked.constant == 0 && asked.status & STA_PLL);
	PROMISE("with it, it is told", ADJUST(.modes = ADJ_OFFSET, .offset = 400000000) >= 0 && asked.offset > 390000000 && asked.offset <= 400000000);
	PROMISE("and shrinks as it is corrected", COMES_TRUE(ADJUST() >= 0 && asked.offset < 310000000));
	PROMISE("by a faster clock", asked.offset < 4000000 || HOLDS_ONCE(rate() > 5 || (ADJUST(.modes = ADJ_OFFSET, .offset = 400000000), sleep_ms(1000), 0)));
	PROMISE("it is at most half a second", ADJUST(.modes = ADJ_OFFSET, .offset = -900000000) >= 0 && asked.offset < -490000000 && asked.offset >= -500000000);
	NEED(ADJUST(.modes = ADJ_OFFSET | ADJ_FREQUENCY, .offset = 0) >= 0 && ADJUST(.modes = ADJ_STATUS | ADJ_MICRO, .status = 0) >= 0);
	PROMISE("adjtime(3) tells what was left", ADJUST(.modes = ADJ_OFFSET_SINGLESHOT, .offset = 100000) >= 0 && asked.offset == 0);
	PROMISE("which shrinks by half a millisecond per second", COMES_TRUE(ADJUST(.modes = ADJ_OFFSET_SS_READ) >= 0 && asked.offset < 100000 && asked.offset > 50000));
	PROMISE("it can be cancelled", ADJUST(.modes = ADJ_OFFSET_SINGLESHOT, .offset = 0) >= 0 && asked.offset > 50000 && ADJUST(.modes = ADJ_OFFSET_SS_READ) >= 0 && asked.offset == 0);
}

/* Sets the clock to three seconds before the end of the day. */
static void set_to_evening(void)
{
	struct timespec now = { 20000 * 86400LL - 3, 0 };
	NEED(clock_settime(CLOCK_REALTIME, &now) == 0);
	NEED(ADJUST(.modes = ADJ_STATUS, .status = STA_PLL) >= 0 && ADJUST(.modes = ADJ_STATUS | ADJ_MAXERROR, .status = 0) >= 0);
}

static int leaped_by(int64_t difference, int64_t seconds)
{
	int64_t now = ns(CLOCK_REALTIME) - ns(CLOCK_MONOTONIC_RAW) - difference - seconds * 1000000000;
	return llabs(now) < 300000000;
}

static void leaps(void)
{
	int state;
	set_to_evening();
	int64_t difference = ns(CLOCK_REALTIME) - ns(CLOCK_MONOTONIC_RAW);
	PROMISE("a leap second can be ordered", ADJUST(.modes = ADJ_STATUS, .status = STA_INS) >= 0 && asked.status & STA_INS);
	PROMISE("the state says that it comes", COMES_TRUE((state = ADJUST()) == TIME_INS || state == TIME_OOP));
	PROMISE("that it is there", COMES_TRUE((state = ADJUST()) == TIME_OOP || state == TIME_WAIT));
	PROMISE("and that it was", COMES_TRUE(ADJUST() == TIME_WAIT));
	PROMISE("it is a second more than others count", HOLDS_ONCE(leaped_by(difference, -1)));
	sleep_ms(1200);
	PROMISE("until the bit is taken back", ADJUST() == TIME_WAIT && ADJUST(.modes = ADJ_STATUS, .status = 0) >= 0 && COMES_TRUE(ADJUST() == TIME_OK));
	set_to_evening();
	difference = ns(CLOCK_REALTIME) - ns(CLOCK_MONOTONIC_RAW);
	NEED(ADJUST(.modes = ADJ_STATUS, .status = STA_DEL) >= 0);
	PROMISE("a second can be left out", COMES_TRUE((state = ADJUST()) == TIME_DEL || state == TIME_WAIT) && COMES_TRUE(ADJUST() == TIME_WAIT));
	PROMISE("it is a second less", HOLDS_ONCE(leaped_by(difference, 1)));
	set_to_evening();
	NEED(ADJUST(.modes = ADJ_STATUS, .status = STA_INS) >= 0);
	NEED(COMES_TRUE((state = ADJUST()) == TIME_INS || state == TIME_OOP || state == TIME_WAIT));
	PROMISE("the end of STA_PLL resets the state", ADJUST(.modes = ADJ_STATUS, .status = STA_PLL) >= 0 && ADJUST(.modes = ADJ_STATUS, .status = 0) == TIME_OK);
}

int main(void)
{
	NEED(geteuid() == 0);
	struct timespec before = soon(CLOCK_REALTIME, 0);
	rates();
	offsets();
	leaps();
	NEED(clock_settime(CLOCK_REALTIME, &before) == 0);
	return conclude();
}
