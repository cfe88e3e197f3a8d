//! kswapd: a task for each node that keeps its free memory above the high watermark, and a
//! pageblock for the kernel.
//!
//! [`wake`] is called from within the page allocator, with the CPU pinned: it takes interrupt-safe
//! locks only. A flag says that there is work, so that the many who notice the same shortage wake
//! the task once.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use freehold_frame::NodeSet;
use freehold_machine::NodeId;
use freehold_machine::topology::MAX_NODES;
use freehold_vm::FrameChoice;

use super::{BATCH, ReclaimOutcome, Sources, UnderWay, Who, blocks, shrink};
use crate::mem::frames;
use crate::sync::WaitQueue;
use crate::{Result, sched, time};

/// How long a node is left alone after nothing could be had.
const RETRY_DELAY: u64 = time::SECOND / 10;

struct Alarm {
    /// Whether the node has its task.
    heard: AtomicBool,
    rings: AtomicBool,
    bell: WaitQueue,
}

impl Alarm {
    const fn new() -> Self {
        Self { heard: AtomicBool::new(false), rings: AtomicBool::new(false), bell: WaitQueue::new() }
    }
}

static ALARMS: [Alarm; MAX_NODES] = [const { Alarm::new() }; MAX_NODES];
static RUNS: AtomicU64 = AtomicU64::new(0);

/// `node` is short of memory. Task context; takes interrupt-safe locks only.
pub fn wake(node: NodeId) {
    let Some(alarm) = ALARMS.get(usize::from(node.0)) else { return };
    if alarm.heard.load(Ordering::Relaxed) && !alarm.rings.swap(true, Ordering::AcqRel) {
        alarm.bell.wake_all();
    }
}

/// How often a kswapd had something to do: `pageoutrun`.
pub fn runs() -> u64 {
    RUNS.load(Ordering::Relaxed)
}

/// Start the tasks of nodes that have none; from the first disk on there is work for them.
///
/// # Errors
/// `ENOMEM`.
pub fn start() -> Result<()> {
    const NAMES: [&str; MAX_NODES] = [
        "kswapd0", "kswapd1", "kswapd2", "kswapd3", "kswapd4", "kswapd5", "kswapd6", "kswapd7", "kswapd8",
        "kswapd9", "kswapd10", "kswapd11", "kswapd12", "kswapd13", "kswapd14", "kswapd15",
    ];
    for ((name, alarm), node) in NAMES.into_iter().zip(&ALARMS).zip((0..).map(NodeId)) {
        if frames().level(node).is_some() && !alarm.heard.swap(true, Ordering::AcqRel) {
            sched::spawn_kernel(name, move || run(node))
                .inspect_err(|_| alarm.heard.store(false, Ordering::Release))?;
        }
    }
    Ok(())
}

fn run(node: NodeId) {
    let alarm = &ALARMS[usize::from(node.0)];
    loop {
        alarm.bell.wait_uninterruptible(|| alarm.rings.swap(false, Ordering::AcqRel).then_some(()));
        RUNS.fetch_add(1, Ordering::Relaxed);
        if balance(node).is_none() {
            let _ = WaitQueue::new().wait_uninterruptible_until(time::now() + RETRY_DELAY, || None::<()>);
        }
    }
}

/// Reclaim until the node is above its high watermark and has something for the kernel; `None`
/// where that cannot be done.
fn balance(node: NodeId) -> Option<()> {
    let is_short = || frames().level(node).is_some_and(|(free, marks)| free < marks.high);
    while is_short() {
        let under_way = UnderWay::begin()?;
        let freed = shrink(BATCH, FrameChoice::on(NodeSet::single(node)), Sources::All, Who::Kswapd).freed;
        drop(under_way);
        // Frames in this CPU's lists serve only this CPU.
        frames().drain_local();
        if freed == 0 && is_short() {
            return None;
        }
        sched::cond_resched();
    }
    if frames().is_kernel_short(node) && blocks::provide(node) == ReclaimOutcome::Nothing {
        return None;
    }
    Some(())
}
