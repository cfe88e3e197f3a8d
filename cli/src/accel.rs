//! Chooses KVM or emulation. /dev/kvm may exist and open, and still not run a guest, or run it for
//! a while and then never again. Only a 64-bit guest whose program sleeps, wakes and ends under a
//! deadline proves that KVM works. The answer is kept until the host boots again or QEMU changes;
//! `freehold doctor` tests anew.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::Result;
use crate::args::Accel;
use crate::failure::Failure;
use crate::image::Image;
use crate::image::spec::{ProgramStream, Spec, Symbols};
use crate::kernel::{self, Family, KernelChoice};
use crate::protocol::Ending;
use crate::qemu::{self, Clock, Engine, Files, VirtualMachine};
use crate::session::{self, End, Ended, Job, LogTo, OutputTo, Purpose};
use crate::size::MIB;
use crate::user::User;

/// Deadline for a guest under KVM: a guest that takes longer never comes up.
const PROOF_DEADLINE: Duration = Duration::from_secs(4);
/// Deadline under emulation, which takes a while on a busy host.
const BOOT_DEADLINE: Duration = Duration::from_secs(60);

/// A program without libraries: it sleeps fifty times for a millisecond, so that the clock must
/// come back each time, and exits with 0.
#[rustfmt::skip]
const SLEEPER: [u8; 56] = [
    0xbb, 50, 0, 0, 0,                     // mov $50, %ebx
    0x48, 0x8d, 0x3d, 0x1c, 0, 0, 0,       // 1: lea time(%rip), %rdi
    0x31, 0xf6,                            // xor %esi, %esi
    0xb8, 35, 0, 0, 0,                     // mov $35, %eax (nanosleep)
    0x0f, 0x05,                            // syscall
    0xff, 0xcb,                            // dec %ebx
    0x75, 0xec,                            // jnz 1b
    0xb8, 231, 0, 0, 0,                    // mov $231, %eax (exit_group)
    0x31, 0xff,                            // xor %edi, %edi
    0x0f, 0x05,                            // syscall
    0, 0, 0, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0,                // time: 0 s
    0x40, 0x42, 0x0f, 0, 0, 0, 0, 0,       //       1,000,000 ns
];

/// State of KVM on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kvm {
    /// A guest ran.
    Works,
    /// The reason why KVM does not work.
    Unusable(String),
}

/// Returns the engine for `wish`. `Err` if KVM is demanded and does not work.
pub fn choose(wish: Accel, clock: Clock) -> Result<Engine> {
    if matches!(clock, Clock::Instructions { .. }) {
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

/// Returns the kept answer, else a new proof.
pub fn known_or_proved() -> Kvm {
    if let Some((key, file)) = key().zip(answer_file())
        && let Some(answer) = kept(&file, &key)
    {
        return answer;
    }
    proved()
}

/// Makes a new proof and keeps its answer.
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
        // The test did not run, so there is no answer to keep.
        Err(failure) => Kvm::Unusable(failure.to_string()),
    }
}

/// Returns the reason why /dev/kvm cannot be opened, if it cannot.
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

/// Returns a key of the facts that the answer depends on: the host's boot and QEMU's file.
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

/// Boots our kernel `path` under emulation and returns its version.
///
/// # Errors
/// If the kernel does not run a program to its end.
pub fn boot(path: &Path) -> Result<String> {
    let ended = sleep(path.to_owned(), Engine::Tcg, BOOT_DEADLINE)?;
    let version = ended.ready.as_ref().and_then(|ready| ready.get("version")).and_then(|text| text.as_str());
    match (&ended.end, version) {
        (End::Program(Ending::Exit(0)), Some(version)) => Ok(version.to_owned()),
        (End::Qemu(words), _) => Err(Failure::new(words.clone(), "")),
        (end, _) => Err(Failure::new(format!("its first program ended as {end:?}"), "")),
    }
}

/// Boots our kernel and runs [`SLEEPER`] to its end.
fn sleep(kernel: PathBuf, engine: Engine, deadline: Duration) -> Result<Ended> {
    let kernel = KernelChoice { family: Family::Freehold, path: kernel, modules: Vec::new() };
    let initramfs = proof_image()?;
    session::run(&Job {
        machine: &VirtualMachine::small(64 * MIB),
        kernel: &kernel,
        files: Files { initramfs: initramfs.path(), swap: None },
        engine,
        streams: [ProgramStream::Pipe; 3],
        output: OutputTo::Stdout,
        timeout: Some(deadline),
        purpose: Purpose::Proof,
        log: LogTo::Nowhere,
        member: None,
        control: None,
        strace: None,
    })
}

/// Runs [`SLEEPER`] under KVM. `Err` when it could not even be tried.
fn prove() -> Result<Kvm> {
    Ok(match sleep(kernel::own_kernel()?, Engine::Kvm, PROOF_DEADLINE)?.end {
        End::Program(Ending::Exit(0)) => Kvm::Works,
        End::TimedOut(_) => {
            Kvm::Unusable(format!("a guest hangs (nothing within {} s)", PROOF_DEADLINE.as_secs()))
        }
        End::Qemu(words) => Kvm::Unusable(words),
        _ => Kvm::Unusable("a guest dies".into()),
    })
}

/// Returns an ELF executable that holds only `code`: the file header, one segment, the code.
fn executable(code: &[u8]) -> Vec<u8> {
    const HEADERS: u64 = 64 + 56;
    const BASE: u64 = 0x40_0000;
    let mut file = Vec::new();
    file.extend([0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    // ET_EXEC for x86-64; entry, program headers behind this header, no sections.
    file.extend([2, 0, 62, 0, 1, 0, 0, 0]);
    file.extend((BASE + HEADERS).to_le_bytes());
    file.extend(64u64.to_le_bytes());
    file.extend(0u64.to_le_bytes());
    file.extend([0, 0, 0, 0, 64, 0, 56, 0, 1, 0, 64, 0, 0, 0, 0, 0]);
    // PT_LOAD, readable and executable: the whole file at BASE.
    file.extend([1, 0, 0, 0, 5, 0, 0, 0]);
    let size = HEADERS + code.len() as u64;
    file.extend([0, BASE, BASE, size, size, 0x1000].iter().flat_map(|word| word.to_le_bytes()));
    file.extend(code);
    file
}

fn proof_image() -> Result<tempfile::NamedTempFile> {
    let program = PathBuf::from("/bin/proof");
    let spec = Spec {
        exec: program.clone(),
        arguments: vec!["proof".into()],
        environment: Vec::new(),
        cwd: "/".into(),
        user: User::ROOT,
        streams: [ProgramStream::Pipe; 3],
        window: (24, 80),
        symbols: Symbols::None,
        swap: None,
        events: None,
        shares: Vec::new(),
        network: None,
        learns: false,
        owns: Vec::new(),
        tells_areas: false,
    };
    let mut image = Image::new(User::ROOT);
    image.add_bytes(Path::new(crate::run::SPEC), 0o600, spec.encode());
    image.add_bytes(&program, 0o755, executable(&SLEEPER));
    let mut file = tempfile::Builder::new()
        .prefix("freehold-proof-")
        .tempfile()
        .map_err(|e| Failure::new(format!("cannot make a temporary file: {e}"), ""))?;
    image.write(file.as_file_mut())?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_proof_is_a_program_that_sleeps_and_ends() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("proof");
        fs::write(&path, executable(&SLEEPER)).expect("write");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(&path, mode).expect("chmod");
        let started = std::time::Instant::now();
        let status = std::process::Command::new(&path).status().expect("this machine runs it too");
        assert!(status.success(), "{status}");
        assert!(started.elapsed() >= Duration::from_millis(50), "it sleeps fifty times");
    }
}
