//! Memory policies (mempolicy(7)), as far as they can be asked for: there is the default one, which places memory
//! near to the CPU that touches it first.

use crate::syscall::Args;
use crate::user::{self, UserPtr};
use crate::{Errno, Result, fs};

const MPOL_DEFAULT: i32 = 0;
const MPOL_F_NODE: u64 = 1;
const MPOL_F_ADDR: u64 = 2;
const MPOL_F_MEMS_ALLOWED: u64 = 4;
/// A node mask of more bits than a page is refused.
const MAX_BITS: u64 = 4096 * 8;

/// get_mempolicy(mode, nodes, bits, address, flags)
pub fn sys_get_mempolicy(args: &Args) -> Result<i64> {
    let (mode, nodes, bits, flags) = (UserPtr::<i32>::new(args[0]), args[1], args[2], args[4]);
    let count = fs::machine::get().map_or(1, |machine| machine.firmware.topology.node_count());
    if flags & !(MPOL_F_NODE | MPOL_F_ADDR | MPOL_F_MEMS_ALLOWED) != 0
        || flags & MPOL_F_NODE != 0
        || (nodes != 0 && bits < count as u64)
        || bits > MAX_BITS
    {
        return Err(Errno::EINVAL);
    }
    let allowed = flags & MPOL_F_MEMS_ALLOWED != 0;
    if allowed && flags != MPOL_F_MEMS_ALLOWED {
        return Err(Errno::EINVAL);
    }
    mode.write_optional(&MPOL_DEFAULT)?;
    if nodes != 0 {
        let mut mask = alloc::vec![0u8; (bits.div_ceil(64) * 8) as usize];
        if allowed {
            mask[..8].copy_from_slice(&((1u64 << count) - 1).to_le_bytes());
        }
        user::write_exact(nodes, &mask)?;
    }
    Ok(0)
}
