//! The memory that CUDA shows, followed without a pause: when does a program see another size?

use std::{
    error::Error,
    io::Write,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use libloading::Library;

use crate::Failed;

/// Prints `total=<bytes>` for each size, until stdin ends.
pub fn run(cuda: &Library) -> Result<(), Box<dyn Error>> {
    static ENDED: AtomicBool = AtomicBool::new(false);
    std::thread::spawn(|| {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        ENDED.store(true, Relaxed);
    });
    let mut output = std::io::stdout().lock();
    let mut known = None;
    while !ENDED.load(Relaxed) {
        let (mut free, mut total) = (0, 0);
        cuda!(cuda, cuMemGetInfo_v2(&raw mut free => *mut usize, &raw mut total => *mut usize))?;
        if known.replace(total) != Some(total) {
            writeln!(output, "total={total}")?;
            output.flush()?;
        }
        // leaves the processor to others
        std::thread::sleep(std::time::Duration::from_micros(50));
    }
    Ok(())
}
