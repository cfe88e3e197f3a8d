//! set_mempolicy, get_mempolicy, mbind. As on Linux, nodes without memory at the time of the call
//! are removed from a policy.

use core::ops::Range;

use freehold_collections::Vec;
use freehold_frame::NodeSet;
use freehold_machine::{NodeId, PAGE_SIZE, VirtAddr};
use freehold_vm::{Access, PageNode, Policy, PolicyMode, Protection};

use super::super::policy::{
    self, MPOL_BIND, MPOL_DEFAULT, MPOL_F_RELATIVE_NODES, MPOL_LOCAL, MPOL_MODE_FLAGS, MPOL_PREFERRED,
    nodes_with_memory, told,
};
use super::super::space::whole_pages;
use super::nodes::{self, Moving, PolicyIs};
use crate::mem::ProcessSpace;
use crate::syscall::Args;
use crate::task::{self, out_of_memory};
use crate::user::{self, UserPtr};
use crate::{Errno, Result, sched};

const MPOL_F_NODE: u64 = 1;
const MPOL_F_ADDR: u64 = 2;
const MPOL_F_MEMS_ALLOWED: u64 = 4;

/// A node mask of more bits than a page has is refused.
const MAX_BITS: u64 = PAGE_SIZE as u64 * 8;
/// Number of possible nodes, as in [`NodeSet`].
const MAX_NODES: u64 = 16;

/// Reads a node set from a program's mask of `bits - 1` bits. (By tradition programs pass one bit
/// too many.)
///
/// # Errors
/// `EINVAL` for an invalid node, or too long a mask; `EFAULT`.
pub(super) fn read_nodes(mask: u64, bits: u64) -> Result<NodeSet> {
    let bits = bits.wrapping_sub(1);
    if mask == 0 || bits == 0 {
        return Ok(NodeSet(0));
    }
    if bits > MAX_BITS {
        return Err(Errno::EINVAL);
    }
    let mut words: Vec<u64> = UserPtr::new(mask).read_many(bits.div_ceil(64) as usize)?;
    if let Some(last) = words.last_mut()
        && !bits.is_multiple_of(64)
    {
        *last &= (1 << (bits % 64)) - 1;
    }
    if words[0] >> MAX_NODES != 0 || words[1..].iter().any(|&word| word != 0) {
        return Err(Errno::EINVAL);
    }
    Ok(NodeSet(words[0] as u16))
}

/// Writes a set of nodes as a mask of `bits - 1` bits, rounded up to words.
fn write_nodes(mask: u64, bits: u64, nodes: NodeSet) -> Result<()> {
    let words = bits.saturating_sub(1).div_ceil(64) as usize;
    let mut bytes = user::zeroed::<u8>(words * 8)?;
    if let Some(first) = bytes.first_chunk_mut() {
        *first = u64::from(nodes.0).to_le_bytes();
    }
    user::write_exact(mask, &bytes)
}

/// Returns the label of a policy ([`Policy::label`]): the flags that were passed with the mode, and
/// the nodes as passed by the program.
const fn label(flags: u32, nodes: NodeSet) -> u32 {
    flags << 16 | nodes.0 as u32
}

/// Makes the policy from `mode`, with its flags, and `nodes`; `None` is the default policy.
fn parse(mode: i32, nodes: NodeSet) -> Result<Option<Policy>> {
    let (number, flags) = (mode as u32 & !MPOL_MODE_FLAGS, mode as u32 & MPOL_MODE_FLAGS);
    if number > MPOL_LOCAL || flags == MPOL_MODE_FLAGS {
        return Err(Errno::EINVAL);
    }
    let none = nodes.0 == 0;
    let mode = match number {
        MPOL_DEFAULT if none => return Ok(None),
        MPOL_LOCAL if none && flags == 0 => PolicyMode::Local,
        MPOL_PREFERRED if none && flags == 0 => PolicyMode::Local,
        MPOL_DEFAULT | MPOL_LOCAL => return Err(Errno::EINVAL),
        _ if none => return Err(Errno::EINVAL),
        MPOL_PREFERRED => PolicyMode::Preferred,
        MPOL_BIND => PolicyMode::Bind,
        _ => PolicyMode::Interleave,
    };
    let there = nodes_with_memory();
    let usable =
        if flags == MPOL_F_RELATIVE_NODES { relative(nodes, there) } else { NodeSet(nodes.0 & there.0) };
    if usable.0 == 0 && mode != PolicyMode::Local {
        return Err(Errno::EINVAL);
    }
    Ok(Some(Policy { mode, nodes: usable, home: None, label: label(flags, nodes) }))
}

/// Returns the members of `there` at the positions in `nodes`, counted cyclically.
fn relative(nodes: NodeSet, there: NodeSet) -> NodeSet {
    let positions = (0..MAX_NODES).filter(|&n| nodes.contains(NodeId(n as u8)));
    NodeSet(positions.filter_map(|n| there.nth(n)).fold(0, |set, node| set | 1 << node.0))
}

/// set_mempolicy(mode, nodes, bits)
pub fn sys_set_mempolicy(args: &Args) -> Result<i64> {
    let policy = parse(args.int(0), read_nodes(args[1], args[2])?)?;
    policy::set_own(&task::current(), policy);
    Ok(0)
}

/// Returns the number of the machine's nodes.
fn node_count() -> u64 {
    crate::fs::machine::get().map_or(1, |machine| machine.firmware.topology.node_count()) as u64
}

/// get_mempolicy(mode, nodes, bits, address, flags)
pub fn sys_get_mempolicy(args: &Args) -> Result<i64> {
    let (mode, mask, bits, addr, flags) =
        (UserPtr::<u32>::new(args[0]), args[1], args[2], VirtAddr(args[3]), args[4]);
    let known = flags & !(MPOL_F_NODE | MPOL_F_ADDR | MPOL_F_MEMS_ALLOWED) == 0;
    if !known || (mask != 0 && bits < node_count()) || bits > MAX_BITS {
        return Err(Errno::EINVAL);
    }
    let task = task::current();
    let (told_mode, nodes) = match flags {
        MPOL_F_MEMS_ALLOWED => (0, nodes_with_memory()),
        _ if flags & MPOL_F_MEMS_ALLOWED != 0 => return Err(Errno::EINVAL),
        _ if flags & MPOL_F_ADDR != 0 => {
            let space = task.process().space();
            let policy = space.lock().policy_at(addr)?;
            let (mode, nodes) = told(policy);
            if flags & MPOL_F_NODE != 0 { (node_of_page(&space, addr)?, nodes) } else { (mode, nodes) }
        }
        _ if addr != VirtAddr(0) => return Err(Errno::EINVAL),
        _ => {
            let policy = task.memory_policy();
            let (mode, nodes) = told(policy.as_ref().map(|policy| policy.policy()));
            if flags & MPOL_F_NODE != 0 {
                let next = policy.and_then(|policy| policy.next_in_turn()).ok_or(Errno::EINVAL)?;
                (u32::from(next.0), nodes)
            } else {
                (mode, nodes)
            }
        }
    };
    mode.write_optional(&told_mode)?;
    if mask != 0 {
        write_nodes(mask, bits, nodes)?;
    }
    Ok(0)
}

/// Returns the node of the page at `addr`, after faulting it in.
fn node_of_page(space: &ProcessSpace, addr: VirtAddr) -> Result<u32> {
    let limits = task::with_current(|task| task.process().memory_limits());
    loop {
        let mut areas = space.lock();
        let protection = areas.area_at(addr).map_or(Protection::NONE, |area| area.protection);
        match areas.node_at(addr) {
            PageNode::On(node) | PageNode::Zeroes(node) if !protection.is_empty() => {
                return Ok(node.0.into());
            }
            // A present page that can be written can also be read.
            _ if !protection.contains(Protection::READ) => return Err(Errno::EFAULT),
            _ => {}
        }
        match areas.fault(addr, Access::Read, &limits) {
            Ok(_) => {}
            Err(freehold_vm::FaultError::OutOfMemory) => {
                drop(areas);
                if task::with_current(|task| task.is_dying()) {
                    return Err(Errno::ENOMEM);
                }
                out_of_memory("get_mempolicy");
            }
            Err(_) => return Err(Errno::EFAULT),
        }
    }
}

/// Returns the pages of `length` bytes from the beginning of a page on; there may be none.
fn pages_from(start: u64, length: u64) -> Result<Range<VirtAddr>> {
    let pages = whole_pages(start, length).filter(|_| start.is_multiple_of(PAGE_SIZE as u64));
    pages.ok_or(Errno::EINVAL)
}

/// mbind(start, length, mode, nodes, bits, flags)
pub fn sys_mbind(args: &Args) -> Result<i64> {
    let [start, length, _, mask, bits, flags] = args.all();
    let mode = match args.int(2) as u32 & !MPOL_MODE_FLAGS {
        MPOL_DEFAULT => PolicyIs::Default,
        _ => PolicyIs::Some,
    };
    let nodes = read_nodes(mask, bits)?;
    let flags = Moving::parse(flags, mode)?;
    let range = pages_from(start, length)?;
    if range.is_empty() {
        return Ok(0);
    }
    let policy = parse(args.int(2), nodes)?;
    nodes::bind(&task::current().process().space(), range, policy, flags)?;
    Ok(0)
}

/// set_mempolicy_home_node(start, length, node, flags)
pub fn sys_set_mempolicy_home_node(args: &Args) -> Result<i64> {
    let [start, length, node, flags, ..] = args.all();
    if flags != 0 || node >= node_count() {
        return Err(Errno::EINVAL);
    }
    let range = pages_from(start, length)?;
    if range.is_empty() {
        return Ok(0);
    }
    let space = task::current().process().space();
    let mut areas = space.lock();
    let (mut next, mut outcome) = (range.start, Err(Errno::ENOENT));
    // Areas before the first one with another policy are changed, as on Linux.
    loop {
        let area = areas.areas_in(next, range.end).next().map(|area| area.start..area.end);
        let Some(area) = area else { return outcome };
        let (from, to) = (next.max(area.start), range.end.min(area.end));
        if let Some(policy) = areas.policy_at(from)? {
            if policy.mode != PolicyMode::Bind {
                return Err(Errno::EOPNOTSUPP);
            }
            let home = Some(NodeId(node as u8));
            areas.set_policy(from, to.0 - from.0, Some(Policy { home, ..policy }))?;
            outcome = Ok(0);
        }
        next = to;
        sched::rest();
    }
}
