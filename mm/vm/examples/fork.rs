//! Fork on the software machine: shared pages, copied pages, and the effect of a pin.
//!
//! `cargo run -p freehold-vm --example fork`

use std::sync::Arc;

use freehold_machine::model::{Config, Model};
use freehold_machine::{Cpus, PAGE_SIZE, Pfn, Tlb, VirtAddr};
use freehold_paging::model::{KERNEL_ROOTS, ModelFrames};
use freehold_paging::{Roots, USER_END};
use freehold_vm::{
    Access, AddressSpace, AreaFlags, AreaPlace, Backing, Commons, Layout, Limits, MapRequest, Protection,
    ReadWrite, Rule, Transient, VmError,
};

type Space = AddressSpace<ModelFrames>;

fn main() -> Result<(), VmError> {
    let frames = ModelFrames::new(Config { frames: 2048, ..Config::default() });
    let model = frames.model();
    let commons = Commons::new(frames, KERNEL_ROOTS)?;
    let layout = Layout { lowest: VirtAddr(0x1_0000), end: USER_END, mmap_base: VirtAddr(0x7000_0000_0000) };
    let mut parent = AddressSpace::new(&commons, layout)?;

    let request = MapRequest {
        place: AreaPlace::Anywhere,
        len: 3 * PAGE_SIZE as u64,
        protection: Protection::READ | Protection::WRITE,
        backing: Backing::Anonymous,
        flags: AreaFlags::empty(),
    };
    let start = parent.map(request, &Limits::NONE)?;
    let pages: [VirtAddr; 3] = core::array::from_fn(|n| VirtAddr(start.0 + (n * PAGE_SIZE) as u64));
    for page in pages {
        store(model, &mut parent, page, b'p')?;
    }
    println!("the parent wrote {} pages", parent.usage().rss_anon);

    let pin = parent.pin::<Transient, ReadWrite>(pages[2], Rule::Asked)?;
    let before = frames.free();
    let mut child = parent.fork()?;
    println!(
        "fork took {} frames: tables, and a copy of the one page that a device works on",
        before - frames.free()
    );

    let before = frames.free();
    store(model, &mut child, pages[0], b'c')?;
    println!("the child's first store took {} frame", before - frames.free());
    drop(child);
    let before = frames.free();
    store(model, &mut parent, pages[1], b'P')?;
    store(model, &mut parent, pages[2], b'P')?;
    println!("with the child gone the parent's stores took {}", before - frames.free());

    drop((parent, pin, commons));
    frames.assert_all_free();
    println!("and every frame is back");
    Ok(())
}

/// A store by the process: its CPU has its root loaded, and faults are handled until the store
/// succeeds.
fn store(model: Model, space: &mut Space, at: VirtAddr, value: u8) -> Result<(), VmError> {
    let roots: Arc<Roots<ModelFrames>> = space.translation().clone();
    roots.load(&model.pin(), &mut None);
    while model.store(at, value).is_err() {
        space.fault(at, Access::Write, &Limits::NONE)?;
    }
    let pinned = model.pin();
    model.load_root(Pfn(0));
    roots.unload(&pinned);
    Ok(())
}
