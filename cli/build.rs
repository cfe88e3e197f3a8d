//! Notes whether kernel and guest programs are to be part of the command (`cli/src/payload.rs`).
//! Links a release without the tables for unwinding: a panic ends the command at once, and they are
//! a tenth of its size.

fn main() {
    println!("cargo:rerun-if-changed=unwind.ld");
    // Only a packed crate has it (tools/crate).
    println!("cargo:rustc-check-cfg=cfg(payload)");
    if std::path::Path::new("payload.tar.zst").exists() {
        println!("cargo:rustc-cfg=payload");
    }
    let is_release = std::env::var("PROFILE").is_ok_and(|profile| profile == "release");
    if let Some(folder) = std::env::var("CARGO_MANIFEST_DIR").ok().filter(|_| is_release) {
        println!("cargo:rustc-link-arg-bins=-Wl,-T,{folder}/unwind.ld");
    }
}
