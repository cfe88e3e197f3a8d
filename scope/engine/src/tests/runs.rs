//! Runs of blocks, in the program's time and in other time.

use freehold_scope_doorbell as doorbell;

use super::{Machine, NODE, TEXT};
use crate::DoorbellRing;

#[test]
fn blocks_know_what_of_them_ran_in_the_programs_time() {
    let mut machine = Machine::new();
    let ring = |machine: &mut Machine, message: [u64; 2]| {
        machine.words.store(0x5000, message[0]);
        machine.words.store(0x5008, message[1]);
        assert_eq!(machine.cpus[0].ring(0x40_0000, Some(0x5000)), DoorbellRing::Phase);
    };
    // Firmware; boot; the program, with a phase that has the last phase's name; time after the
    // program.
    machine.run(0, 0xf_0000, 0xf_0000, 1000);
    machine.kernel(0);
    ring(&mut machine, doorbell::phase("program"));
    machine.kernel(0);
    machine.kernel(1);
    ring(&mut machine, doorbell::phase("closing"));
    machine.kernel(0);
    machine.run(1, 0x40_0000, NODE + 0x1000, 7);
    ring(&mut machine, doorbell::phase("more"));
    machine.kernel(0);
    ring(&mut machine, doorbell::phase("closing"));
    machine.kernel(0);
    machine.kernel(1);
    let results = machine.results();
    let of = |pc| {
        results.blocks.iter().find(|block| block.pc == pc).map(|block| (block.instructions, block.program))
    };
    assert_eq!((of(0xf_0000), of(0x40_0000), of(TEXT)), (Some((1000, 0)), Some((7, 7)), Some((70, 40))));
    assert_eq!(results.blocks[0].pc, TEXT, "the program's hottest is first");
}

#[test]
fn where_no_program_began_everything_is_the_programs() {
    let mut machine = Machine::new();
    machine.run(0, 0xf_0000, 0xf_0000, 1000);
    machine.kernel(0);
    let results = machine.results();
    assert!(results.blocks.iter().all(|block| block.program == block.instructions));
}
