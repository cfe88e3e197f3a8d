//! `freehold-disk SOCKET FILE [LIE [HONEST]]`: serves a copy of FILE's bytes at SOCKET; after
//! HONEST requests it lies.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use freehold_disk::{Disk, LIES, Lie, serve};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [socket, file, rest @ ..] = &arguments[..] else { return usage() };
    let lie = rest.first().map_or(Ok(Lie::None), |text| text.parse());
    let honest = rest.get(1).map_or(Ok(0), |text| text.parse());
    let (Ok(lie), Ok(honest)) = (lie, honest) else { return usage() };
    let served = std::fs::read(file).and_then(|mut bytes| {
        bytes.resize(bytes.len().next_multiple_of(freehold_disk::SECTOR), 0);
        serve(socket.as_ref(), &Disk::new(bytes).lying(lie, honest))
    });
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("freehold-disk: {error}");
            ExitCode::FAILURE
        }
    }
}

fn usage() -> ExitCode {
    let names: Vec<&str> = LIES.iter().map(|(name, _)| *name).collect();
    eprintln!("usage: freehold-disk SOCKET FILE [LIE [HONEST]]\nlies: {}", names.join(" "));
    ExitCode::FAILURE
}
