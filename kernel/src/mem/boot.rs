//! Start of the page allocator: the frame table, every frame that start-up does not keep, and the
//! state that all address spaces share.
//!
//! Runs once on the first CPU, before there is a second one. Frames that start-up takes earlier
//! come from `crate::hw::memory`, which is sealed here.

use freehold_buddy::{Buddy, Managed, Options, Wipe};
use freehold_collections::{Arc, Vec};
use freehold_frame::{
    Anon, Beside, Frame, FrameRecord, FrameSource, FrameTable, NodePolicy, Order, OutOfMemory, Owner,
    Request, ready,
};
use freehold_machine::{NodeId, Pfn, Topology};
use freehold_replica::Setting;
use freehold_vm::{Commons, HugeMode, KernelRoots};
use freehold_xpfo::Policy;
use zerocopy::FromZeros;

use super::{Frames, charge, frames, hotplug, oom, reclaim, replica};
use crate::cgroup::memory::accounts;
use crate::cmdline::Plant;
use crate::hw::memory::{self, FrameProvider, pluggable};
use crate::hw::plant as breach;
use crate::hw::{Hardware, heap, sync::Once, watch};
use crate::{Errno, fault_inject, hw};

/// Largest number of bytes that the mm crates allocate for one object, an area or a page that
/// moves.
const OBJECTS: usize = 8 << 10;

static BESIDE: Once<Beside> = Once::new();
static COMMONS: Once<Arc<Commons<Frames>>> = Once::new();

/// Returns the state that all address spaces share.
///
/// # Panics
/// Before [`init`].
pub fn commons() -> &'static Arc<Commons<Frames>> {
    COMMONS.get().expect("address spaces come after the page allocator")
}

/// Smallest number of frames of a machine that uses 2 MiB pages: 512 MiB, as on Linux.
const LEAST_FOR_HUGE: u64 = 512 << 8;

/// Returns zeroed boot memory for tables that live as long as the kernel.
fn zeroes<T: FromZeros + Sync>(count: usize) -> &'static [T] {
    memory::boot_zeroes(count).expect("1/16384 of all memory that may come, and 35 KiB per CPU")
}

/// Builds the frame table and the page allocator over `topology`, and gives every frame that boot
/// did not keep to the allocator. `huge` overrides which anonymous memory gets 2 MiB pages, which
/// otherwise depends on the machine's size. `replicas` selects the nodes that get the kernel's
/// text.
#[cold]
pub fn init(
    topology: &'static Topology,
    cpus: usize,
    options: Options,
    huge: Option<HugeMode>,
    (policy, replicas): (Policy, Setting),
) {
    memory::set_policy(policy);
    let options = Options {
        wipe_on_enter: if policy.is_exclusive() { Wipe::Always } else { Wipe::Never },
        on_pressure: Some(reclaim::wake),
        on_denial: Some(oom::note_denial),
        fault_hook: Some(fault_inject::page),
        object_reserve: Some(|| heap::ensure(OBJECTS).map_err(|_| OutOfMemory)),
        rest: Some(crate::sched::rest),
        ledger: Some(charge::LEDGER),
        ..options
    };
    let (records, reverse_keys) =
        memory::frame_table(topology).expect("memory for the frame table: 1/170 of all");
    BESIDE.set(Beside::new(reverse_keys).with_ready(zeroes(ready::words(records.len()))));
    let table = FrameTable::new(records).with(BESIDE.get().expect("just set"));
    let metadata = zeroes(Buddy::<Hardware>::metadata_words(topology, cpus, &options));
    let pcps = zeroes(cpus);
    let reserved = memory::seal();
    let managed = Managed { topology, reserved, table, metadata, pcps };
    let buddy =
        Buddy::new(Hardware, managed, options).expect("firmware's memory was checked when it was read");
    hw::set_frames(buddy);
    memory::use_frame_table().expect("a frame for a table");
    replica::init(topology, cpus, replicas);
    publish(policy);
    memory::set_frame_provider(&KernelFrames);
    let roots = KernelRoots::new(|node| Hardware.kernel_root(node)).telling(hw::replicas::note_shared_load);
    let commons = Commons::new(frames(), roots).expect("a machine that boots has a frame for zeroes");
    let by_size =
        || if frames().total_frames() < LEAST_FOR_HUGE { HugeMode::Never } else { HugeMode::Always };
    commons.swap().charge_to(accounts());
    commons.set_huge_mode(huge.unwrap_or_else(by_size));
    COMMONS.set(commons);
}

/// Returns how strictly frames of programs are removed from the kernel's map.
pub fn xpfo_policy() -> Policy {
    memory::policy()
}

/// Tells an observer of the machine how to read the frame table.
fn publish(policy: Policy) {
    let layout = FrameRecord::LAYOUT;
    let bits = |holds: fn(&Owner) -> bool| {
        Owner::ALL.iter().filter(|owner| holds(owner)).map(|&owner| 1 << owner as u64).sum()
    };
    let records = watch::Records {
        bytes: layout.bytes,
        state_offset: layout.state_offset,
        owner_mask: layout.owner_mask,
        order_shift: layout.order_shift,
        order_mask: layout.order_mask,
        user_owners: bits(|owner| owner.is_user()),
        replica_owners: bits(|owner| *owner == Owner::Replica),
        stack_owners: bits(|owner| *owner == Owner::Stack),
        transfer_owners: bits(|owner| *owner == Owner::Bounce),
        outside_owners: if policy.is_exclusive() { bits(|owner| owner.is_outside()) } else { 0 },
    };
    watch::publish(records, Owner::ALL.iter().map(|owner| owner.name()));
}

/// Violates a rule of memory isolation on purpose, to test checks from outside.
///
/// # Errors
/// `ENOMEM` if there is no memory for it.
#[cold]
pub fn plant(plant: Plant) -> crate::Result<()> {
    log::warn!("freehold.plant: a rule is broken on purpose: {plant:?}");
    match plant {
        Plant::DirectMapRead => breach::direct_map_read(Frame::<Anon, _>::allocate(frames())?.pfn()),
        Plant::PluggedRead => {
            hotplug::grow_or_wait()?;
            let mut others = Vec::new();
            let frame = loop {
                let frame = Frame::<Anon, _>::allocate(frames())?;
                if pluggable::is_plugged(frame.pfn()) {
                    break frame;
                }
                others.try_push(frame)?;
            };
            breach::direct_map_read(frame.pfn());
        }
        Plant::StaleEntry => breach::stale_entry()?,
        Plant::TextAlias => breach::text_alias()?,
        Plant::UnusedMapping => breach::unused_mapping(Frame::<Anon, _>::allocate(frames())?.pfn())?,
        Plant::WritableText => breach::writable_text()?,
        Plant::LostFrame => core::mem::forget(Frame::<Anon, _>::allocate(frames())?),
        Plant::SmapOpen => breach::smap_open(),
        Plant::WrongRoot => breach::wrong_root().then_some(()).ok_or(Errno::ENODEV)?,
        Plant::BuildFlip => {
            let replicas = replica::replicas().ok_or(Errno::ENODEV)?;
            let page = replicas.lock().flip_everywhere().map_err(|_| Errno::ENOMEM)?;
            log::warn!("freehold.plant: a bit of page {page} of the image and of all its copies is flipped");
        }
        Plant::ReplicaFlip => {
            let flipped =
                replica::replicas().and_then(|replicas| replicas.lock().flip()).ok_or(Errno::ENODEV)?;
            log::warn!(
                "freehold.plant: a bit of page {} of node {}'s replica is flipped",
                flipped.1,
                flipped.0.0
            );
        }
    }
    Ok(())
}

/// Frames for the kernel's heap, stacks and tables.
struct KernelFrames;

impl KernelFrames {
    fn take(request: Request) -> Option<Pfn> {
        frames().allocate(if reclaim::is_under_way() { request.from_reserve() } else { request }).ok()
    }

    fn release(likely: Owner, first: Pfn, order: Order) {
        if frames().table().state(first).owner() != Owner::Reserved {
            frames().release_of(likely, first, order);
        }
    }
}

impl FrameProvider for KernelFrames {
    fn alloc(&self, order: u32) -> Option<Pfn> {
        Self::take(Request::new(Owner::Kernel).order(Order::new(order)?))
    }

    fn alloc_stack(&self, node: NodeId) -> Option<Pfn> {
        Self::take(Request::new(Owner::Stack).policy(NodePolicy::Preferred(node)))
    }

    #[cold]
    #[inline(never)]
    fn alloc_near(&self, node: NodeId, order: u32) -> Option<Pfn> {
        Self::take(Request::new(Owner::Kernel).order(Order::new(order)?).policy(NodePolicy::Preferred(node)))
    }

    fn free(&self, first: Pfn, order: u32) {
        let order = Order::new(order).expect("only orders that were handed out come back");
        Self::release(Owner::Kernel, first, order);
    }

    fn free_stack(&self, frame: Pfn) {
        Self::release(Owner::Stack, frame, Order::FRAME);
    }
}
