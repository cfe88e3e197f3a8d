//! KVM or emulation? /dev/kvm may exist, open, and still not run a guest: only a real 64-bit guest under a
//! deadline proves it. The answer is kept until the host boots again or QEMU changes; `freehold doctor` asks anew.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::Result;
use crate::args::Accel;
use crate::failure::Failure;
use crate::image::Image;
use crate::image::spec::{Spec, Stream, Symbols};
use crate::kernel::{self, Family, Kernel};
use crate::qemu::{self, Clock, Engine, Machine};
use crate::session::{self, End, Job, LogTo, Purpose};
use crate::size::MIB;

/// A guest that has not come up by then under KVM never will.
const PROOF_DEADLINE: Duration = Duration::from_secs(4);

/// What is known about KVM here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kvm {
    /// A guest ran.
    Works,
    /// Why not, in words.
    Unusable(String),
}

/// The engine for `wish`. `Err` when KVM is demanded and does not work.
pub fn choose(wish: Accel, clock: Clock) -> Result<Engine> {
    if clock == Clock::Instructions {
        return match wish {
            Accel::Kvm => Err(Failure::new("--icount needs the emulator", "leave --accel kvm out")),
            _ => Ok(Engine::Tcg),
        };
    }
    match wish {
        Accel::Tcg => Ok(Engine::Tcg),
        Accel::Auto => Ok(match known_or_proved() {
            Kvm::Works => Engine::Kvm,
            Kvm::Unusable(_) => Engine::Tcg,
        }),
        Accel::Kvm => match known_or_proved() {
            Kvm::Works => Ok(Engine::Kvm),
            Kvm::Unusable(why) => Err(Failure::new(
                format!("KVM does not work here: {why}"),
                "--accel tcg emulates; freehold doctor says more",
            )),
        },
    }
}

/// The kept answer, else a new proof.
pub fn known_or_proved() -> Kvm {
    if let Some((key, file)) = key().zip(answer_file())
        && let Some(answer) = kept(&file, &key)
    {
        return answer;
    }
    proved()
}

/// A new proof, whose answer is kept.
pub fn proved() -> Kvm {
    if let Some(why) = closed() {
        return Kvm::Unusable(why);
    }
    match prove() {
        Ok(answer) => {
            if let Some((key, file)) = key().zip(answer_file()) {
                keep(&file, &key, &answer);
            }
            answer
        }
        // Nothing was tried: that is no answer to keep.
        Err(failure) => Kvm::Unusable(failure.to_string()),
    }
}

/// Why /dev/kvm cannot even be opened, if it cannot.
fn closed() -> Option<String> {
    let error = fs::OpenOptions::new().read(true).write(true).open("/dev/kvm").err()?;
    Some(match error.kind() {
        std::io::ErrorKind::NotFound => "there is no /dev/kvm".into(),
        std::io::ErrorKind::PermissionDenied => {
            "no permission for /dev/kvm; add yourself to the group kvm".into()
        }
        _ => format!("/dev/kvm: {error}"),
    })
}

fn answer_file() -> Option<PathBuf> {
    Some(crate::linux::cache_folder().ok()?.join("kvm"))
}

/// What the answer depends on.
fn key() -> Option<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let stamp = |path: &Path| fs::metadata(path).ok().map(|meta| format!("{} {}", meta.len(), meta.mtime()));
    Some(format!("{} {}", boot.trim(), stamp(&qemu::program().ok()?)?))
}

fn kept(file: &Path, key: &str) -> Option<Kvm> {
    let text = fs::read_to_string(file).ok()?;
    let answer = text.strip_prefix(key)?.strip_prefix('\n')?;
    Some(match answer.trim() {
        "works" => Kvm::Works,
        why => Kvm::Unusable(why.to_owned()),
    })
}

fn keep(file: &Path, key: &str, answer: &Kvm) {
    let text = match answer {
        Kvm::Works => "works",
        Kvm::Unusable(why) => why,
    };
    // Without a cache the proof is only repeated.
    let _ = file.parent().map(fs::create_dir_all);
    let _ = fs::write(file, format!("{key}\n{text}\n"));
}

/// Boots our kernel under KVM as far as READY. `Err` when it could not even be tried.
fn prove() -> Result<Kvm> {
    let kernel = Kernel { family: Family::Freehold, path: kernel::own_kernel()?, modules: Vec::new() };
    let initramfs = proof_image()?;
    let job = Job {
        machine: &Machine::small(64 * MIB),
        kernel: &kernel,
        initramfs: initramfs.path(),
        engine: Engine::Kvm,
        streams: [Stream::Pipe; 3],
        timeout: Some(PROOF_DEADLINE),
        purpose: Purpose::Proof,
        log: LogTo::Nowhere,
    };
    Ok(match session::run(&job)?.end {
        End::Proved | End::Program(_) => Kvm::Works,
        End::TimedOut => {
            Kvm::Unusable(format!("a guest hangs (nothing within {} s)", PROOF_DEADLINE.as_secs()))
        }
        End::Qemu(words) => Kvm::Unusable(words),
        _ => Kvm::Unusable("a guest dies".into()),
    })
}

fn proof_image() -> Result<tempfile::NamedTempFile> {
    let program = PathBuf::from("/bin/proof");
    let spec = Spec {
        exec: program.clone(),
        arguments: vec!["proof".into()],
        environment: Vec::new(),
        cwd: "/".into(),
        streams: [Stream::Pipe; 3],
        window: (24, 80),
        symbols: Symbols::None,
    };
    let mut image = Image::new();
    image.add_bytes(Path::new("/.freehold/spec"), 0o600, spec.encode());
    // READY comes before the program, so it need not even run.
    image.add_bytes(&program, 0o755, b"#!/none\n".to_vec());
    let mut file = tempfile::Builder::new()
        .prefix("freehold-proof-")
        .tempfile()
        .map_err(|e| Failure::new(format!("cannot make a temporary file: {e}"), ""))?;
    image.write(file.as_file_mut())?;
    Ok(file)
}
