//! Writes the CRD manifests into a folder (`crds/generated`), or checks them; `reasons FILE` writes the reference page of reasons.

use std::{error::Error, fs, path::Path, process::ExitCode};

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(mode), Some(folder)) = (args.next(), args.next()) else {
        return Err("usage: crdgen write|check FOLDER, crdgen reasons FILE".into());
    };
    if mode == "reasons" {
        fs::write(folder, gputenancy_crds::reasons::page())?;
        return Ok(ExitCode::SUCCESS);
    }
    let folder = Path::new(&folder);
    let mut stale = false;
    for (file, crd) in gputenancy_crds::manifest::all()? {
        let (path, text) = (folder.join(file), serde_saphyr::to_string(&crd)?);
        if mode == "write" {
            fs::create_dir_all(folder)?;
            fs::write(&path, text)?;
        } else if fs::read_to_string(&path).ok().as_deref() != Some(text.as_str()) {
            eprintln!("{} does not match the types: run `make crds`", path.display());
            stale = true;
        }
    }
    Ok(if stale { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
