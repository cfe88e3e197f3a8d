//! Blocks that a CPU returns before it idles.
#![allow(clippy::unwrap_used)]

mod common;

use common::{check, model};
use freehold_buddy::{Moment, Options};
use freehold_frame::{FrameSource, Order, Owner, Request};
use freehold_machine::CpuId;
use freehold_machine::model::Config;

#[test]
fn a_cpu_that_idles_gives_back_its_surplus_also_when_it_had_none_for_long() {
    const PART: usize = 100;
    let source = model(Config { frames: 40_000, ..Config::default() }, &[], Options::default());
    let listed = || source.cached_frames();
    let idle = |times: usize| (0..times).for_each(|_| source.poll(Moment::Idle));
    let frames: Vec<_> =
        (0..20 * PART).map(|_| source.allocate(Request::new(Owner::Anon)).unwrap()).collect();
    let (first, frames) = frames.split_at(6 * PART);
    first.iter().for_each(|frame| source.release(*frame, Order::FRAME));
    idle(100);
    let least = listed();
    for (round, part) in frames.chunks(PART).enumerate() {
        // Nothing is refilled, so only the surplus itself can be noticed.
        idle(round);
        part.iter().for_each(|frame| source.release(*frame, Order::FRAME));
        let most = listed();
        idle(30);
        assert!(listed() <= least + 2, "{} frames of {most} stay in lists, {least} before", listed());
    }
    check(source);
    // Blocks that other CPUs request are returned at the next idle, whatever the last check found.
    assert!(listed() > 0);
    source.machine().on_cpu(CpuId(0), || source.request_drain());
    idle(1);
    assert_eq!(listed(), 0);
}
