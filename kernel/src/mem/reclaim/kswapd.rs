//! kswapd: a task per node that keeps the node's free memory above the high watermark, and a free
//! pageblock for the kernel.
//!
//! [`wake`] is called from within the page allocator, with the CPU pinned: it takes interrupt-safe
//! locks only. A flag records that there is work, so that several callers that notice the same
//! shortage wake the task once.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use freehold_frame::NodeSet;
use freehold_machine::NodeId;
use freehold_machine::topology::MAX_NODES;
use freehold_vm::FrameChoice;

use super::{BATCH, ReclaimOutcome, Sources, UnderWay, Who, blocks, shrink};
use crate::mem::frames;
use crate::sync::WaitQueue;
use crate::{Result, sched, time};

/// How long a node is left alone after nothing could be reclaimed.
const RETRY_DELAY: u64 = time::SECOND / 10;

struct Alarm {
    /// Whether the node's task has been started.
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

/// Reports that `node` is short of memory. Task context; takes interrupt-safe locks only.
pub fn wake(node: NodeId) {
    let Some(alarm) = ALARMS.get(usize::from(node.0)) else { return };
    if alarm.heard.load(Ordering::Relaxed) && !alarm.rings.swap(true, Ordering::AcqRel) {
        alarm.bell.wake_all();
    }
}

/// Returns how often a kswapd had work: `pageoutrun`.
pub fn runs() -> u64 {
    RUNS.load(Ordering::Relaxed)
}

/// Starts the tasks of nodes that have none. They have work once there is a disk.
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

/// Reclaims until the node is above its high watermark and has frames for the kernel; `None` if
/// that is impossible.
fn balance(node: NodeId) -> Option<()> {
    let is_short = || frames().level(node).is_some_and(|(free, marks)| free < marks.high);
    while is_short() {
        let under_way = UnderWay::begin()?;
        let freed = shrink(BATCH, FrameChoice::on(NodeSet::single(node)), Sources::All, Who::Kswapd).freed;
        drop(under_way);
        // Frames in this CPU's lists are available to this CPU only.
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
