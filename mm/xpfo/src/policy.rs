//! The policy for keeping programs' frames out of the kernel's map.

/// Under [`Policy::On`], how long a closed window may stay in a CPU's translation cache: 4 ms.
pub const DEADLINE_NS: u64 = 4_000_000;

/// `xpfo=`
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Policy {
    /// All memory except the image and read-only regions is in the kernel's map; there are no
    /// windows.
    Off,
    /// A closed window stays cached until its CPU's lap ends, or another address space is loaded.
    Lap,
    /// As [`Policy::Lap`], and at most [`DEADLINE_NS`] long; not while the CPU idles; and not in
    /// user mode of an address space if a kernel task opened it.
    #[default]
    On,
    /// A window is flushed when it closes.
    Strict,
}

/// How windows close while a task has the CPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum Closing {
    /// By the policy.
    #[default]
    ByPolicy = 0,
    /// As under [`Policy::Strict`], because the task requested it.
    Forgets = 1,
}

impl Policy {
    /// All, from the most lenient on.
    pub const ALL: [Self; 4] = [Self::Off, Self::Lap, Self::On, Self::Strict];

    /// The policy of that name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|policy| policy.name() == name)
    }
    /// The policy's name as a parameter value.
    pub const fn name(self) -> &'static str {
        ["off", "lap", "on", "strict"][self as usize]
    }
    /// Whether frames of programs are outside the kernel's map.
    pub const fn is_exclusive(self) -> bool {
        !matches!(self, Self::Off)
    }
    /// Whether a closed window is flushed by the deadline, before the CPU idles, and before another
    /// address space's user mode.
    pub const fn bounds_time(self) -> bool {
        matches!(self, Self::On)
    }
    /// Whether a window is flushed as it closes.
    pub const fn forgets_at_close(self) -> bool {
        matches!(self, Self::Strict)
    }
    /// The policy as a number from 0 (off) to 3 (strict), for an outside observer.
    pub const fn number(self) -> u64 {
        self as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_policy_is_found_by_its_name_and_other_names_are_refused() {
        for (number, policy) in Policy::ALL.into_iter().enumerate() {
            assert_eq!(Policy::parse(policy.name()), Some(policy));
            assert_eq!(policy.number(), number as u64);
        }
        for name in ["", "ON", "1", "eager", "on "] {
            assert_eq!(Policy::parse(name), None);
        }
        assert_eq!(Policy::default(), Policy::On);
    }
}
