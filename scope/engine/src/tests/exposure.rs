//! Translations of programs' frames, from the window's close to the translation's end. Also
//! residue: programs' bytes that are still in memory.

use super::half::with_table;
use super::*;

const FRAME: u64 = 0x3000;

/// Opens, uses and closes a window on [`FRAME`] on CPU 0.
fn use_window(machine: &mut Machine) {
    machine.map(WINDOWS, FRAME << 12 | 3);
    machine.access(0, WINDOWS, FRAME << 12, AccessKind::Write);
    machine.kernel(0);
    machine.map(WINDOWS, 0);
}

#[test]
fn a_closed_window_lives_until_its_translation_is_flushed() {
    let mut machine = with_table(WINDOWS, &[(FRAME, ANON)]);
    use_window(&mut machine);
    (0..10).for_each(|_| machine.kernel(0));
    machine.cpus[0].flush(Flush::Space(None));
    // A window that was never used is not cached.
    machine.map(WINDOWS, FRAME << 12 | 3);
    machine.map(WINDOWS, 0);
    let results = machine.results();
    let exposure = results.exposure.unwrap();
    assert_eq!((exposure.windows, exposure.closed_cached, exposure.open, exposure.closed), (2, 1, 10, 100));
    assert_eq!((exposure.lives.ended[6], exposure.lives.alive.iter().sum::<u64>()), (1, 0));
    assert_eq!(results.oracle.total, 0);
}

#[test]
fn a_window_that_stays_cached_is_alive_at_the_end() {
    let mut machine = with_table(WINDOWS, &[(FRAME, ANON)]);
    use_window(&mut machine);
    machine.kernel(0);
    let exposure = machine.results().exposure.unwrap();
    assert_eq!((exposure.lives.alive[3], exposure.open, exposure.closed), (1, 10, 10));
}

#[test]
fn the_longest_life_is_the_machines_and_a_halt_finds_closed_windows_in_the_cache() {
    let mut machine = with_table(WINDOWS, &[(FRAME, ANON)]);
    use_window(&mut machine);
    machine.cpus[0].halt();
    // Another CPU runs meanwhile: more than it keeps to itself.
    (0..1000).for_each(|_| machine.kernel(1));
    machine.cpus[0].flush(Flush::Space(None));
    machine.cpus[0].halt();
    // A translation that is still alive at the end.
    use_window(&mut machine);
    let exposure = machine.results().exposure.unwrap();
    assert_eq!((exposure.halts, exposure.closed_at_halts), (2, 1));
    assert!((5_000..=10_000).contains(&exposure.longest_closed), "{}", exposure.longest_closed);
    assert_eq!(exposure.lives.ended[0], 1, "on its own clock it ended at once");
    assert!(exposure.longest_closed_own < 10, "{}", exposure.longest_closed_own);
}

#[test]
fn a_frame_that_becomes_a_programs_has_an_alias_until_the_direct_maps_translation_ends() {
    let mut machine = with_table(DYNAMIC, &[]);
    let frame = 0x1000u64;
    machine.access(0, DIRECT + (frame << 12), frame << 12, AccessKind::Write);
    machine.cpus[0].access::<Everything>(0x40_0000, 0x7000, (AccessKind::Write, 8), || Some(frame << 12));
    (0..10).for_each(|_| machine.kernel(0));
    machine.cpus[0].flush(Flush::Space(None));
    (0..10).for_each(|_| machine.kernel(0));
    machine.cpus[0].flush(Flush::All);
    let exposure = machine.results().exposure.unwrap();
    assert_eq!((exposure.aliases, exposure.alias_lives.ended[7]), (1, 1));
    assert_eq!(exposure.alias_until_switch[6], 1, "a deferred flush ends it earlier");
}

#[test]
fn an_alias_lives_on_the_other_cpus_too() {
    let mut machine = with_table(DYNAMIC, &[]);
    let frame = 0x1000u64;
    for cpu in [0, 1] {
        machine.access(cpu, DIRECT + (frame << 12), frame << 12, AccessKind::Write);
    }
    machine.kernel(0);
    let program = |machine: &mut Machine, frame: u64| {
        machine.cpus[0].access::<Everything>(0x40_0000, 0x7000, (AccessKind::Write, 8), || Some(frame << 12));
    };
    program(&mut machine, frame);
    // The first CPU flushes its own.
    machine.cpus[0].flush(Flush::All);
    (0..1000).for_each(|_| machine.kernel(0));
    machine.cpus[1].flush(Flush::All);
    // The kernel uses the frame again, so no first use by a program is pending.
    machine.access(1, DIRECT + (frame << 12), frame << 12, AccessKind::Write);
    machine.cpus[1].flush(Flush::All);
    let exposure = machine.results().exposure.unwrap();
    assert_eq!(exposure.aliases, 1);
    assert_eq!(exposure.other_alias_lives.ended.iter().sum::<u64>(), 1);
    assert_eq!(exposure.other_alias_lives.ended[12..14].iter().sum::<u64>(), 1, "some 10,000");
}

#[test]
fn a_programs_bytes_are_residue_where_the_kernels_map_has_them_after_the_program() {
    let mut machine = Machine::with(true);
    machine.kernel(0);
    // Inside the direct map, with the policy that allows it.
    machine.outside = 0;
    machine.publish(&[(0x1000, ANON), (FRAME, ANON)]);
    for frame in [0x1000u64, FRAME] {
        machine.words.store(frame << 12, 0x0102_0304);
        machine.access(0, 0x7000 + frame, frame << 12, AccessKind::Write);
    }
    machine.set_state(0x1000, ANON << 4);
    machine.set_state(FRAME, ANON << 4);
    let last = *machine.results().residue.last().unwrap();
    assert_eq!((last.frames, last.bytes), (2, 8));
    assert_eq!((last.residue_frames, last.residue_bytes, last.free_frames), (1, 4, 1));
}

#[test]
fn what_a_device_stored_is_residue_where_the_kernels_map_has_it_after_the_transfer() {
    let mut machine = Machine::with(true);
    machine.kernel(0);
    machine.outside = 0;
    machine.publish(&[(0x1000, BOUNCE), (0x1001, KERNEL_OWNER), (FRAME, BOUNCE)]);
    // No CPU stores these.
    for frame in [0x1000u64, 0x1001, FRAME] {
        machine.words.store(frame << 12 | 0x800, 0x0102_0304);
    }
    // Its time is far ahead, so it is the last in the list.
    machine.watch.sample(u64::MAX / 2);
    machine.set_state(0x1000, BOUNCE << 4);
    machine.set_state(FRAME, BOUNCE << 4);
    let samples = machine.results().residue;
    let found = |at: usize| (samples[at].frames, samples[at].reachable_frames, samples[at].residue_bytes);
    assert_eq!((found(1), found(0)), ((2, 1, 0), (2, 1, 4)));
    assert_eq!(samples[0].free_frames, 1);
}

#[test]
fn what_firmware_left_is_no_residue() {
    let mut machine = Machine::with(true);
    machine.words.store(0x1000 << 12, 0x0102_0304);
    // Firmware runs at low addresses, as programs do.
    machine.cpus[0].access::<Everything>(0xf_0000, 0x7000, (AccessKind::Write, 8), || Some(0x1000 << 12));
    machine.outside = 0;
    machine.publish(&[(0x1000, KERNEL_OWNER)]);
    let last = *machine.results().residue.last().unwrap();
    assert_eq!((last.frames, last.bytes, last.residue_frames), (0, 0, 0));
}

#[test]
fn a_free_frame_may_be_wiped_through_a_window_and_nothing_else() {
    let mut machine = Machine::with(true);
    machine.kernel(0);
    machine.words.map(ROOT, WINDOWS, 0x7000, PageSize::Small, 0);
    machine.publish(&[(FRAME, ANON)]);
    machine.set_state(FRAME, ANON << 4);
    machine.access(0, WINDOWS, FRAME << 12, AccessKind::Write);
    assert_eq!(machine.watch.frames.results(Default::default(), Default::default()).total, 0);
    machine.access(0, WINDOWS, FRAME << 12, AccessKind::Read);
    machine.words.store(FRAME << 12, 9);
    machine.access(0, WINDOWS, FRAME << 12, AccessKind::Write);
    let oracle = machine.results().oracle;
    assert_eq!((oracle.violations[0].rule, oracle.total), (Rule::FreeFrame, 2));
}
