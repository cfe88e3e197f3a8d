//! A CPU that lives: windows that nest, an alarm, idling, switches of address spaces and kernel
//! tasks, in any order. Its translation cache has each entry from its store until it is forgotten.
#![allow(clippy::unwrap_used)]

use std::cell::{Cell, RefCell};
use std::vec::Vec;

use super::*;

const SLOTS: usize = 24;
const NEVER: u64 = u64::MAX;
/// The longest time for which an alarm waits: interrupts are off.
const LATE_NS: u64 = DEADLINE_NS / 16;

/// A step that a broken kernel leaves out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Broken {
    /// The alarm is never set.
    NoAlarm,
    /// The alarm that came while a window was open is not set again.
    NoSecondAlarm,
    /// INVLPG.
    NoSlot,
    /// The load of CR3.
    NoAll,
    /// Nothing is forgotten before the CPU idles.
    NoIdle,
    /// Nothing is forgotten when a program goes on after a kernel task.
    NoTakeBack,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Task {
    Program,
    Kernel,
}

/// A translation in the cache.
#[derive(Clone, Copy, Debug)]
struct Cached {
    frame: u64,
    opener: Task,
    /// When its window closed; [`NEVER`] while it is open.
    closed: u64,
}

struct Cpu {
    windows: CpuWindows<SLOTS>,
    policy: Policy,
    broken: Option<Broken>,
    now: Cell<u64>,
    alarm: Cell<u64>,
    cache: RefCell<[Option<Cached>; SLOTS]>,
    open: RefCell<Vec<usize>>,
    task: Cell<Task>,
    random: Cell<u64>,
    /// The longest time for which a closed window was cached.
    longest: Cell<u64>,
}

impl Translations for Cpu {
    fn forget_slot(&self, slot: usize) {
        if self.broken != Some(Broken::NoSlot) {
            let cached = &mut self.cache.borrow_mut()[slot];
            // An open one is cached again at once.
            *cached = cached.filter(|cached| cached.closed == NEVER);
        }
    }
    fn forget_all(&self) {
        if self.broken != Some(Broken::NoAll) {
            let mut cache = self.cache.borrow_mut();
            cache.iter_mut().for_each(|cached| *cached = cached.filter(|cached| cached.closed == NEVER));
        }
    }
}

impl Alarm for Cpu {
    fn is_set(&self) -> bool {
        self.alarm.get() != NEVER
    }
    fn set(&self, after_ns: u64) {
        if self.broken != Some(Broken::NoAlarm) {
            self.alarm.set(self.now.get() + after_ns);
        }
    }
}

impl Cpu {
    fn new(policy: Policy, broken: Option<Broken>, seed: u64) -> Self {
        Self {
            windows: CpuWindows::new(),
            policy,
            broken,
            now: Cell::new(0),
            alarm: Cell::new(NEVER),
            cache: RefCell::new([None; SLOTS]),
            open: RefCell::default(),
            task: Cell::new(Task::Program),
            random: Cell::new(seed),
            longest: Cell::new(0),
        }
    }
    /// A number below `end` (Knuth's generator).
    fn below(&self, end: u64) -> u64 {
        self.random.set(
            self.random.get().wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407),
        );
        (self.random.get() >> 33) % end
    }
    fn closed(&self) -> Vec<Cached> {
        self.cache.borrow().iter().flatten().copied().filter(|cached| cached.closed != NEVER).collect()
    }
    fn open(&self) -> Result<(), &'static str> {
        let open = self.open.borrow().iter().fold(0, |mask, slot| mask | 1 << slot);
        let slot = self.windows.take().unwrap_or_else(|| self.windows.renew(self.policy, open, self));
        let cached = Cached { frame: self.below(1000), opener: self.task.get(), closed: NEVER };
        let before = self.cache.borrow_mut()[slot].replace(cached);
        if before.is_some_and(|before| before.frame != cached.frame) {
            return Err("a window shows another frame");
        }
        self.open.borrow_mut().push(slot);
        Ok(())
    }
    fn close(&self) {
        if let Some(slot) = self.open.borrow_mut().pop() {
            self.cache.borrow_mut()[slot].as_mut().unwrap().closed = self.now.get();
        }
    }
    fn pass(&self, time: u64) -> Result<(), &'static str> {
        self.now.set(self.now.get() + time);
        let now = self.now.get();
        let longest = self.closed().iter().map(|cached| now - cached.closed).max().unwrap_or(0);
        self.longest.set(self.longest.get().max(longest));
        if self.policy == Policy::On && longest > DEADLINE_NS {
            return Err("a closed window outlives its time");
        }
        if self.alarm.get() <= now {
            self.alarm.set(NEVER);
            let again = self.windows.expire(self.open.borrow().len() as u32, self);
            if let Some(after_ns) = again.filter(|_| self.broken != Some(Broken::NoSecondAlarm)) {
                self.set(after_ns);
            }
        }
        Ok(())
    }
    fn idle(&self) -> Result<(), &'static str> {
        if self.policy.bounds_time() && self.broken != Some(Broken::NoIdle) {
            self.windows.forget_closed(self);
        }
        self.alarm.set(NEVER);
        let is_kept = self.policy == Policy::On && !self.closed().is_empty();
        if is_kept { Err("a closed window is cached while the CPU idles") } else { Ok(()) }
    }
    /// Another task gets the CPU. No window is open.
    fn switch(&self) -> Result<(), &'static str> {
        if self.task.get() == Task::Program {
            self.windows.lend();
            self.task.set(Task::Kernel);
            return Ok(());
        }
        let forgets = self.windows.take_back() && self.policy.bounds_time();
        if forgets && self.broken != Some(Broken::NoTakeBack) {
            self.windows.forget_closed(self);
        }
        self.task.set(Task::Program);
        let is_kept = self.closed().iter().any(|cached| cached.opener == Task::Kernel);
        if self.policy == Policy::On && is_kept { Err("a kernel task's window is cached") } else { Ok(()) }
    }
    fn live(&self, steps: u64) -> Result<(), &'static str> {
        for _ in 0..steps {
            let nothing_is_open = self.open.borrow().is_empty();
            match self.below(16) {
                0..5 if self.open.borrow().len() < 4 => self.open()?,
                0..10 => self.close(),
                10..14 => self.pass(self.below(LATE_NS))?,
                14 if nothing_is_open => {
                    self.forget_all();
                    self.windows.forgotten();
                }
                _ if nothing_is_open && self.below(4) == 0 => self.idle()?,
                _ if nothing_is_open => self.switch()?,
                _ => {}
            }
        }
        Ok(())
    }
}

#[test]
fn a_closed_window_is_forgotten_in_time_before_a_cpu_idles_and_before_a_program_goes_on() {
    for seed in 0..40 {
        let cpu = Cpu::new(Policy::On, None, seed);
        assert_eq!(cpu.live(5000), Ok(()), "seed {seed}");
        assert!(cpu.longest.get() > DEADLINE_NS / 2, "no window came near its end");
    }
}

#[test]
fn the_alarm_comes_again_while_windows_are_opened_and_once_more() {
    let cpu = Cpu::new(Policy::On, None, 1);
    let window = || {
        cpu.open().unwrap();
        cpu.close();
    };
    window();
    for _ in 0..5 {
        let alarm = cpu.alarm.get();
        window();
        cpu.pass(ALARM_NS).unwrap();
        assert_eq!(cpu.alarm.get(), alarm + ALARM_NS);
        assert!(cpu.closed().is_empty());
    }
    cpu.pass(ALARM_NS).unwrap();
    assert!(!cpu.is_set(), "no window was opened since the last alarm");
    window();
    assert!(cpu.is_set());
}

#[test]
fn without_a_bound_no_alarm_is_set_and_windows_outlive_the_time() {
    let longest = (0..40).map(|seed| {
        let cpu = Cpu::new(Policy::Lap, None, seed);
        assert_eq!(cpu.live(5000), Ok(()));
        assert!(!cpu.is_set());
        cpu.longest.get()
    });
    assert!(longest.max().unwrap() > DEADLINE_NS);
}

#[test]
fn each_step_that_a_broken_kernel_leaves_out_is_found() {
    for (broken, found) in [
        (Broken::NoAlarm, "a closed window outlives its time"),
        (Broken::NoSecondAlarm, "a closed window outlives its time"),
        (Broken::NoIdle, "a closed window is cached while the CPU idles"),
        (Broken::NoTakeBack, "a kernel task's window is cached"),
    ] {
        let first = (0..40).find_map(|seed| Cpu::new(Policy::On, Some(broken), seed).live(5000).err());
        assert_eq!(first, Some(found), "{broken:?}");
    }
    for broken in [Broken::NoSlot, Broken::NoAll] {
        assert!(
            (0..40).any(|seed| Cpu::new(Policy::On, Some(broken), seed).live(5000).is_err()),
            "{broken:?}"
        );
    }
}

#[test]
fn a_few_slots_are_forgotten_one_by_one_and_many_at_once() {
    #[derive(Default)]
    struct Told(RefCell<Vec<usize>>, Cell<u32>);
    impl Translations for Told {
        fn forget_slot(&self, slot: usize) {
            self.0.borrow_mut().push(slot);
        }
        fn forget_all(&self) {
            self.1.set(self.1.get() + 1);
        }
    }
    let told = Told::default();
    forget_slots(0b1010_0001, &told);
    assert_eq!((told.0.take(), told.1.get()), (std::vec![0, 5, 7], 0));
    forget_slots((1 << MANY_SLOTS) - 1, &told);
    assert_eq!((told.0.take().len() as u32, told.1.get()), (MANY_SLOTS, 0));
    forget_slots((1 << (MANY_SLOTS + 1)) - 1, &told);
    assert_eq!((told.0.take().len(), told.1.get()), (0, 1));
}
