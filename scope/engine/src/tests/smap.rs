//! RFLAGS.AC on the machine made by hand: the code that may run with it set, and the detection of
//! other code.

use freehold_scope_record::Rule;

use super::{DYNAMIC, HANDLERS, IMAGE, Machine, NODE, TEXT, USER_COPIES};
use crate::Flags;

/// The page of the kernel's stack in which a trap pushes its frame, by both addresses.
const STACK: u64 = DYNAMIC + 0x8000;
const STACK_FRAME: u64 = 0x7000 << 12;
const USER_CODE: u64 = 0x33;
const KERNEL_CODE: u64 = 0x10;
const AC: u64 = 1 << 18;

impl Machine {
    /// Makes a trap by `vector` (without an error code) that finds these flags and this code
    /// selector, and runs its handler's first block.
    fn trap(&mut self, vector: u64, flags: u64, code: u64) {
        let handler = HANDLERS + 16 * vector;
        self.words.store(STACK_FRAME + 0x108, code);
        self.words.store(STACK_FRAME + 0x110, flags);
        self.run(0, handler, IMAGE + (handler - TEXT), 3);
        self.cpus[0].handler_pushed(handler, STACK + 0xf8, || Some(STACK_FRAME + 0xf8));
    }
    /// Runs IRETQ from that frame.
    fn return_from_trap(&mut self) {
        self.cpus[0].flags(Flags::Return);
        for word in 0..5 {
            let at = 0x100 + 8 * word;
            self.cpus[0].flags_at(Flags::Return, STACK + at, || Some(STACK_FRAME + at));
        }
    }
    fn user_copy(&mut self) {
        self.run(0, USER_COPIES + 8, IMAGE + 0x708, 4);
    }
    fn smap(&self) -> (u64, u64, u64) {
        let checks = self.cpus[0].smap.checks;
        (checks.user_copies, checks.entries, checks.outside)
    }
}

#[test]
fn a_user_copy_and_a_handler_up_to_its_clac_may_run_with_smap_off() {
    let mut machine = Machine::new();
    machine.publish(&[]);
    machine.cpus[0].flags(Flags::Set);
    machine.user_copy();
    // The copy faults, the handler clears AC and runs long.
    machine.trap(3, AC, KERNEL_CODE);
    machine.run(0, TEXT + 0x400, IMAGE + 0x400, 4);
    machine.cpus[0].flags(Flags::Clear);
    machine.kernel(0);
    machine.return_from_trap();
    machine.user_copy();
    machine.cpus[0].flags(Flags::Clear);
    machine.kernel(0);
    // A program with AC set: AC is not checked in programs.
    machine.trap(5, AC, USER_CODE);
    machine.cpus[0].flags(Flags::Clear);
    machine.kernel(0);
    machine.return_from_trap();
    machine.run(0, 0x40_0000, NODE, 100);
    assert_eq!(machine.smap(), (8, 3 + 4, 0));
    let oracle = machine.results().oracle;
    assert_eq!((oracle.total, oracle.smap.frames, oracle.smap.program_frames), (0, 2, 1));
}

#[test]
fn a_handler_without_clac_is_found_where_it_has_run_too_long() {
    let mut machine = Machine::new();
    machine.publish(&[]);
    machine.trap(3, AC, USER_CODE);
    machine.run(0, TEXT + 0x400, IMAGE + 0x400, 4);
    machine.run(0, TEXT + 0x410, IMAGE + 0x410, 13);
    machine.kernel(0);
    // A call in between changes nothing.
    machine.user_copy();
    machine.kernel(0);
    assert_eq!(machine.smap(), (4, 4, 33));
    machine.return_from_trap();
    machine.trap(3, AC, USER_CODE);
    machine.kernel(0);
    machine.run(0, TEXT + 0x410, IMAGE + 0x410, 13);
    let oracle = machine.results().oracle;
    let [violation] = &oracle.violations[..] else { panic!("{:?}", oracle.violations) };
    assert_eq!((violation.rule, violation.pc, violation.count), (Rule::Smap, TEXT + 0x410, 2));
    assert_eq!((violation.frame, oracle.smap.outside), (IMAGE >> 12, 33 + 13));
}

#[test]
fn what_a_handler_left_of_its_allowance_is_for_nobody_else() {
    let mut machine = Machine::new();
    machine.publish(&[]);
    machine.trap(3, AC, USER_CODE);
    machine.cpus[0].flags(Flags::Clear);
    machine.cpus[0].flags(Flags::Set);
    machine.kernel(0);
    assert_eq!(machine.smap(), (0, 0, 10));
    assert_eq!(machine.results().oracle.total, 1);
}

#[test]
fn what_stac_popf_and_a_mask_without_ac_leave_set_is_found() {
    let shown = |machine: &mut Machine, flags: Flags, value: u64| {
        machine.words.store(STACK_FRAME, value);
        machine.cpus[0].flags_at(flags, STACK, || Some(STACK_FRAME));
    };
    type Open<'a> = &'a dyn Fn(&mut Machine);
    let ways: [(Open<'_>, u64); 4] = [
        (&|machine| machine.cpus[0].flags(Flags::Set), 1),
        (&|machine| shown(machine, Flags::Pop, AC | 2), 1),
        // PUSHF after a SYSCALL.
        (&|machine| shown(machine, Flags::Push, AC | 2), 1),
        (&|machine| shown(machine, Flags::Pop, 2), 0),
    ];
    for (number, (open, violations)) in ways.into_iter().enumerate() {
        let mut machine = Machine::new();
        machine.publish(&[]);
        machine.cpus[0].flags(Flags::Clear);
        machine.kernel(0);
        open(&mut machine);
        machine.kernel(0);
        machine.kernel(0);
        machine.cpus[0].flags(Flags::Leave);
        machine.kernel(0);
        let oracle = machine.results().oracle;
        assert_eq!((oracle.total, oracle.smap.outside), (violations, 20 * violations), "way {number}");
    }
}
