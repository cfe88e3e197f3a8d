//! Moving pages between nodes: move_pages(2), migrate_pages(2), and mbind(2) for pages that are
//! present.
//!
//! The address space is locked for a limited range at a time. Pages of files are moved between two
//! ranges by their cache, which unmaps them everywhere first. Address spaces that share pages with
//! this one are updated at the end (MPOL_MF_MOVE_ALL).

use core::ops::Range;

use freehold_collections::Vec;
use freehold_frame::{NodePolicy, NodeSet};
use freehold_machine::{NodeId, PAGEBLOCK_FRAMES, Pfn, VirtAddr};
use freehold_vm::{CachedPage, MigrateOutcome, Migration, PageAt, PageNode, Policy, PolicyMode, SharedPages};

use super::super::charge::without_limits;
use super::super::policy::nodes_with_memory;
use super::super::{ForeignWindows, Frames, ProcessSpace, commons};
use super::policy::read_nodes;
use super::remote::space_of;
use crate::hw::PAGE;
use crate::syscall::Args;
use crate::task::{self, Capability, inspect::Mode};
use crate::user::UserPtr;
use crate::{Errno, Result, hw, sched};

const MPOL_MF_STRICT: u64 = 1;
const MPOL_MF_MOVE: u64 = 2;
const MPOL_MF_MOVE_ALL: u64 = 4;

/// Number of pages that move_pages processes at a time.
const CHUNK: usize = 64;
/// Every address.
const ALL: Range<VirtAddr> = VirtAddr(0)..VirtAddr(u64::MAX);
/// Size of the range for which a space is locked at a time.
const STRETCH: u64 = 16 << 20;

/// The pages that mbind moves, and whether misplaced pages are an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Moving {
    moves: Option<SharedPages>,
    strict: Strict,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Strict {
    /// Misplaced pages are an error (MPOL_MF_STRICT).
    Yes,
    No,
}

impl Moving {
    /// Parses mbind's flags. `mode` is whether the policy is the default one, which all pages
    /// comply with.
    pub(super) fn parse(flags: u64, mode: PolicyIs) -> Result<Self> {
        if flags & !(MPOL_MF_STRICT | MPOL_MF_MOVE | MPOL_MF_MOVE_ALL) != 0 {
            return Err(Errno::EINVAL);
        }
        let strict = flags & MPOL_MF_STRICT != 0 && mode == PolicyIs::Some;
        Ok(Self { moves: moves(flags)?, strict: if strict { Strict::Yes } else { Strict::No } })
    }
}

/// Whether a policy is the default one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PolicyIs {
    Default,
    Some,
}

/// Returns the pages that a call's flags request to move.
fn moves(flags: u64) -> Result<Option<SharedPages>> {
    if flags & MPOL_MF_MOVE_ALL != 0 {
        return if task::may(Capability::SysNice) { Ok(Some(SharedPages::Move)) } else { Err(Errno::EPERM) };
    }
    Ok((flags & MPOL_MF_MOVE != 0).then_some(SharedPages::Stay))
}

/// Returns an error in the format of a page's status.
const fn status_of(errno: Errno) -> i32 {
    errno.to_return_value() as i32
}

/// Updates all address spaces except `space` for moved pages that they share with it. If the caller
/// is killed, the remaining pages stay where they are.
fn let_others_follow(space: &ProcessSpace, migration: &mut Migration<Frames>) {
    if migration.has_forwards() {
        commons().for_each_space(&mut |other| {
            if other.id() != space.id() && !sched::thread::is_current_dying() {
                other.migrate(ALL, migration, |_, _| None, |_, _| {});
            }
        });
    }
}

/// Returns the status of a page that has not moved.
fn errno_of(outcome: &MigrateOutcome<Frames>) -> Errno {
    match outcome {
        MigrateOutcome::Shared => Errno::EACCES,
        MigrateOutcome::NoMemory => Errno::ENOMEM,
        _ => Errno::EBUSY,
    }
}

/// move_pages(pid, count, pages, nodes, status, flags)
pub fn sys_move_pages(args: &Args) -> Result<i64> {
    let [_, count, pages, nodes, status, flags] = args.all();
    if flags & !(MPOL_MF_MOVE | MPOL_MF_MOVE_ALL) != 0 {
        return Err(Errno::EINVAL);
    }
    let shared = moves(flags)?.unwrap_or(SharedPages::Stay);
    let space = match args.int(0) {
        0 => task::current().process().space(),
        pid => space_of(pid, Mode::READ_REAL, Errno::EINVAL)?,
    };
    let pages = UserPtr::<u64>::new(pages);
    let nodes = (nodes != 0).then(|| UserPtr::<i32>::new(nodes));
    let status = UserPtr::<i32>::new(status);
    let mut migration = Migration::new(shared);
    let mut outcome = Ok(0);
    let mut done = 0;
    while done < count as usize && outcome.is_ok() {
        let n = CHUNK.min(count as usize - done);
        let step = pages.add(done).read_many(n).and_then(|addresses| match nodes {
            None => locate(&space, &addresses).map(|told| (told, 0)),
            Some(nodes) => {
                let nodes = nodes.add(done).read_many(n)?;
                without_limits(|| move_chunk(&space, &addresses, &nodes, &mut migration))
            }
        });
        outcome = step.and_then(|(told, left)| {
            status.add(done).write_slice(&told)?;
            outcome.map(|before| before + left)
        });
        done += n;
        outcome = outcome.and_then(|left| sched::checkpoint().map(|()| left));
    }
    let_others_follow(&space, &mut migration);
    outcome
}

/// Returns the nodes of the pages at `addresses`, or why there is none.
fn locate(space: &ProcessSpace, addresses: &[u64]) -> Result<Vec<i32>> {
    let mut all = Vec::try_with_capacity(addresses.len())?;
    let areas = space.lock();
    let told = |&addr: &u64| match areas.node_at(VirtAddr(addr)) {
        PageNode::On(node) => i32::from(node.0),
        PageNode::Absent => status_of(Errno::ENOENT),
        PageNode::Zeroes(_) | PageNode::Unmapped => status_of(Errno::EFAULT),
    };
    all.try_extend(addresses.iter().map(told))?;
    Ok(all)
}

/// Moves the pages at `addresses` to `nodes`. Returns the status of each, and the number of pages
/// that could have moved but have not.
fn move_chunk(
    space: &ProcessSpace,
    addresses: &[u64],
    nodes: &[i32],
    migration: &mut Migration<Frames>,
) -> Result<(Vec<i32>, i64)> {
    let there = nodes_with_memory();
    let is_there = |&node: &i32| u8::try_from(node).is_ok_and(|node| there.contains(NodeId(node)));
    if !nodes.iter().all(is_there) {
        return Err(Errno::ENODEV);
    }
    let mut failed: Vec<(VirtAddr, Errno)> = Vec::new();
    let mut cached: Vec<(VirtAddr, CachedPage<Frames>, NodePolicy)> = Vec::new();
    // At most one entry per page: nothing may be allocated while the space is locked.
    failed.try_reserve_exact(2 * addresses.len())?;
    cached.try_reserve_exact(addresses.len())?;
    let mut all = Vec::try_with_capacity(addresses.len())?;
    let _foreign = ForeignWindows::begin();
    let mut areas = space.lock();
    let mut at = 0;
    while at < addresses.len() {
        // A run of adjacent pages with the same target node.
        let (start, node) = (VirtAddr(addresses[at]).page_start(), NodeId(nodes[at] as u8));
        let follows = |n: usize| {
            let next = start.0.checked_add(n as u64 * PAGE);
            addresses.get(at + n).copied() == next && nodes.get(at + n) == nodes.get(at)
        };
        let run = (1..).take_while(|&n| follows(n)).count() + 1;
        let place = NodePolicy::Bind(NodeSet::single(node));
        let end = VirtAddr(start.0.saturating_add(run as u64 * PAGE));
        let wish = |_, frame| (commons().node_of(frame) != node).then_some(place);
        areas.migrate(start..end, migration, wish, |addr, outcome| match outcome {
            MigrateOutcome::Moved => {}
            MigrateOutcome::Cached(page) => cached.push_reserved((addr, page, place)),
            outcome => failed.push_reserved((addr, errno_of(&outcome))),
        });
        at += run;
    }
    drop(areas);
    for (addr, page, place) in cached {
        match commons().migrate_cached(&page, place) {
            // The page is unmapped now. It is mapped again at the next access.
            MigrateOutcome::Moved => moved_cached(space, addr),
            outcome => failed.push_reserved((addr, errno_of(&outcome))),
        }
    }
    let left = tell_moved(space, addresses.iter().zip(nodes), &failed, &mut all)?;
    Ok((all, left))
}

/// Stores in `all` the present node of each page, or why the page is not on its target node.
/// Returns the number of pages that could have moved but have not. `all` has enough room.
fn tell_moved<'a>(
    space: &ProcessSpace,
    wanted: impl Iterator<Item = (&'a u64, &'a i32)> + Clone,
    failed: &[(VirtAddr, Errno)],
    all: &mut Vec<i32>,
) -> Result<i64> {
    let areas = space.lock();
    let mut left = 0;
    let block_of = |addr: u64| VirtAddr(addr & !(PAGEBLOCK_FRAMES * PAGE - 1));
    let told = wanted.clone().enumerate().map(|(index, (&addr, &node))| {
        let (addr, block) = (VirtAddr(addr).page_start(), block_of(addr));
        match areas.node_at(addr) {
            PageNode::On(now) if i32::from(now.0) == node => node,
            PageNode::On(_) => {
                // A large page is reported by its first address.
                let why = failed.iter().find(|(at, _)| *at == addr || *at == block);
                // It moved to its target, and then to that of another entry for the same page.
                let went_on = wanted.clone().skip(index + 1).any(|(&later, _)| block_of(later) == block);
                if why.is_none() && went_on {
                    return node;
                }
                let why = why.map_or(Errno::EBUSY, |(_, why)| *why);
                left += i64::from(why != Errno::EACCES);
                status_of(why)
            }
            PageNode::Absent => status_of(Errno::ENOENT),
            PageNode::Zeroes(_) | PageNode::Unmapped => status_of(Errno::EFAULT),
        }
    });
    all.try_extend(told)?;
    Ok(left)
}

/// Maps a file's page again that was unmapped to be moved, so that a reader of its status finds it.
fn moved_cached(space: &ProcessSpace, addr: VirtAddr) {
    let limits = task::with_current(|task| task.process().memory_limits());
    // If that fails, the page is absent, which is no error.
    let _ = space.lock().fault(addr, freehold_vm::Access::Read, &limits);
}

/// migrate_pages(pid, bits, old nodes, new nodes): returns how many pages have not moved.
pub fn sys_migrate_pages(args: &Args) -> Result<i64> {
    let (bits, old, new) = (args[1], read_nodes(args[2], args[1])?, read_nodes(args[3], args[1])?);
    let space = match args.int(0) {
        0 => task::current().process().space(),
        pid => space_of(pid, Mode::READ_REAL, Errno::EINVAL)?,
    };
    let privileged = task::may(Capability::SysNice);
    let there = nodes_with_memory();
    if new.0 & !there.0 != 0 && !privileged {
        return Err(Errno::EPERM);
    }
    let new = NodeSet(new.0 & there.0);
    if new.0 == 0 || bits == 0 {
        return Err(Errno::EINVAL);
    }
    let shared = if privileged { SharedPages::Move } else { SharedPages::Stay };
    let mut migration = Migration::new(shared);
    let alike = old.0.count_ones() == new.0.count_ones();
    let wish = |_: VirtAddr, frame| {
        let node = commons().node_of(frame);
        if !old.contains(node) || (!alike && new.contains(node)) {
            return None;
        }
        let position = (0..node.0).filter(|&other| old.contains(NodeId(other))).count();
        let to = new.nth(position as u64).filter(|&to| to != node)?;
        Some(NodePolicy::Bind(NodeSet::single(to)))
    };
    let _foreign = ForeignWindows::begin();
    let left = without_limits(|| move_range(&space, ALL, &mut migration, wish))?;
    let_others_follow(&space, &mut migration);
    Ok(left as i64)
}

/// Moves the pages of `range` to the nodes given by `wish`, in steps. Returns how many have not
/// moved.
fn move_range(
    space: &ProcessSpace,
    range: Range<VirtAddr>,
    migration: &mut Migration<Frames>,
    wish: impl Fn(VirtAddr, Pfn) -> Option<NodePolicy>,
) -> Result<u64> {
    let mut left = 0;
    let mut cached: Vec<(VirtAddr, CachedPage<Frames>)> = Vec::new();
    let mut next = range.start;
    loop {
        let area = space.lock().areas_in(next, range.end).next().map(|area| area.start..area.end);
        let Some(area) = area else { break };
        let start = next.max(area.start);
        let end = VirtAddr(start.0 + STRETCH).min(area.end).min(range.end);
        let pages = ((end.0 - start.0) / PAGE) as usize;
        cached.try_reserve(pages)?;
        space.lock().migrate(start..end, migration, &wish, |addr, outcome| match outcome {
            MigrateOutcome::Moved => {}
            MigrateOutcome::Cached(page) => cached.push_reserved((addr, page)),
            _ => left += 1,
        });
        for (addr, page) in cached.drain(..) {
            let Some(place) = wish(addr, page.frame()) else { continue };
            left += u64::from(!matches!(commons().migrate_cached(&page, place), MigrateOutcome::Moved));
        }
        if task::with_current(|task| task.signal_pending() && task.is_dying()) {
            break;
        }
        sched::cond_resched();
        next = end;
    }
    Ok(left)
}

/// mbind: sets a policy for `range`, and moves its pages to the nodes that the policy selects.
pub(super) fn bind(
    space: &ProcessSpace,
    range: Range<VirtAddr>,
    policy: Option<Policy>,
    moving: Moving,
) -> Result<()> {
    // A local policy names no node, so every page complies with it, and moved pages go to the
    // mover's node.
    let is_local = policy.is_some_and(|policy| policy.mode == PolicyMode::Local);
    let wanted = match policy {
        Some(policy) if is_local => {
            let here = NodeSet::single(hw::node_of(hw::current_cpu()));
            Some(Policy { mode: PolicyMode::Preferred, nodes: here, ..policy })
        }
        policy => policy,
    };
    let misplaced = |frame| wanted.filter(|wanted| !wanted.nodes.contains(commons().node_of(frame)));
    let mut areas = space.lock();
    let end_of_areas = areas
        .areas_in(range.start, range.end)
        .fold(range.start, |end, area| if area.start <= end { area.end } else { end });
    // A hole, which setting the policy detects, has priority over this error.
    if moving.strict == Strict::Yes && moving.moves.is_none() && end_of_areas >= range.end {
        let mut wrong = false;
        areas.pages(range.start, range.end, |page| {
            let PageAt::Frame(frame) = page.at else { return };
            wrong |= page.mappings > 0 && (is_local || misplaced(frame).is_some());
        });
        if wrong {
            return Err(Errno::EIO);
        }
    }
    areas.set_policy(range.start, range.end.0 - range.start.0, policy)?;
    drop(areas);
    let Some(shared) = moving.moves else { return Ok(()) };
    let mut migration = Migration::new(shared);
    let wish = |addr: VirtAddr, frame| misplaced(frame).map(|wanted| wanted.place(addr.0 / PAGE));
    let left = without_limits(|| move_range(space, range, &mut migration, wish))?;
    let_others_follow(space, &mut migration);
    if left > 0 && moving.strict == Strict::Yes { Err(Errno::EIO) } else { Ok(()) }
}
