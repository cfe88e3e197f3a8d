//! A missing flush, which the software machine detects, and the batch that makes sure that none is
//! missing.
//!
//! `cargo run -p freehold-paging --example flush`

use freehold_frame::{Anon, Frame, LeafMapping, OutOfMemory, User};
use freehold_machine::model::Config;
use freehold_machine::{Cpus, Pfn, Tlb, VirtAddr};
use freehold_paging::model::{KERNEL_ROOTS, ModelFrames};
use freehold_paging::{Backing, Entry, Marks, PageSize, Rights, Space};

fn main() -> Result<(), OutOfMemory> {
    let frames = ModelFrames::new(Config { cpus: 2, frames: 2048, ..Config::default() });
    let model = frames.model();
    let mut space = Space::new(frames, KERNEL_ROOTS)?;
    space.roots().load(&model.pin(), &mut None);

    let addr = VirtAddr(0x40_0000);
    let mapping = Frame::<Anon, _>::allocate_zeroed(frames)?.into_mapping().map_err(|_| OutOfMemory)?;
    let leaf =
        Entry::leaf(mapping.into_leaf(), Rights::READ | Rights::WRITE, Marks::Untouched, Backing::Counted);
    space.make(addr, PageSize::Small)?.fill(leaf);
    println!("store: {:?}", model.store(addr, 7));

    let mut batch = space.batch();
    let (slot, _) = space.find(addr).expect("it was just made");
    let old = slot.replace(Entry::EMPTY);
    println!("changed, not yet flushed: {:?}", model.stale());
    let hold = LeafMapping::<User, _>::from_leaf(frames, old.frame()).expect("the leaf held it");
    batch.unmapped(addr, old, Some(hold));
    drop(batch);
    println!("after the batch: {:?}, load: {:?}", model.stale(), model.load(addr));

    let pinned = model.pin();
    model.load_root(Pfn(0));
    space.roots().unload(&pinned);
    drop(pinned);
    drop(space);
    frames.assert_all_free();
    Ok(())
}
