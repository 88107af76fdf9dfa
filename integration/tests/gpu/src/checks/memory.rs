//! The limit of memory, for each family of allocations, as the program and as NVML see it.

use std::{error::Error, time::Duration};

use crate::{
    container::{CONTEXT, Container, MIB, first_line},
    report::Report,
};

/// The families, as `cuda-work` names them.
const KINDS: [&str; 7] = ["plain", "pitch", "managed", "async", "virtual", "array", "mipmap"];
/// Bytes of the share.
const SHARE: u64 = 4096 * MIB;
/// Blocks of 64 MiB in it.
const BLOCKS: f64 = 64.0;

/// The GPU, its driver, and what a context takes.
pub fn driver(container: &Container, report: &mut Report) -> Result<(), Box<dyn Error>> {
    let gpu = &container.gpu;
    report.measured("driver", "GPU and driver", &format!("{}, {}", gpu.text("nvmlDeviceGetName"), gpu.driver()));
    let watch = gpu.watch();
    let mut child = container.begin(None, "allocate --count 0 --hold")?;
    // it prints when it has its context
    first_line(&mut child)?;
    std::thread::sleep(Duration::from_millis(100));
    child.kill()?;
    child.wait()?;
    let context = watch.end();
    let found = format!("{} MiB", context / MIB);
    report.holds("driver", "a context takes no more than the agent reserves (640 MiB)", &found, context <= CONTEXT);
    Ok(())
}

/// Each family stops at the limit, and NVML agrees.
pub fn families(container: &Container, report: &mut Report) -> Result<(), Box<dyn Error>> {
    for kind in KINDS {
        let share = container.share("memory", SHARE)?;
        let watch = container.gpu.watch();
        let output = container.work(Some(&share), &format!("allocate --kind {kind} --count 200"))?;
        let most = watch.end();
        let (granted, code) = (output.number("granted="), output.number("code="));
        // arrays have rows of their own length, and managed memory is on the GPU when it is used
        let exact = !matches!(kind, "array" | "mipmap");
        let enough = granted.is_some_and(|granted| if exact { granted == BLOCKS } else { granted > BLOCKS * 0.9 });
        let found = format!("{} NVML: {} MiB at most", output.text.lines().next().unwrap_or(""), most / MIB);
        report.holds(
            "memory",
            &format!("{kind}: 64 blocks of 64 MiB of 4 GiB, then out of memory; NVML not above 4 GiB and a context"),
            &found,
            enough && code == Some(2.0) && most <= SHARE + CONTEXT,
        );
        let again = container.work(Some(&share), &format!("allocate --kind {kind} --count 200 --free"))?;
        let first = again.text.lines().next().unwrap_or("").to_owned();
        let ok = again.number("granted=") == Some(200.0);
        report.holds("memory", &format!("{kind}: what is freed can be allocated again, 200 times"), &first, ok);
    }
    small(container, report)
}

/// Blocks of sizes that the driver rounds up.
fn small(container: &Container, report: &mut Report) -> Result<(), Box<dyn Error>> {
    for size in ["4Ki", "100Ki", "1025Ki", "3Mi"] {
        let share = container.share("memory", 1024 * MIB)?;
        let watch = container.gpu.watch();
        let output = container.work(Some(&share), &format!("allocate --size {size} --count 300000"))?;
        let most = watch.end();
        let found = format!("{} NVML: {} MiB at most", output.text.lines().next().unwrap_or(""), most / MIB);
        let ok = output.number("code=") == Some(2.0) && most <= 1024 * MIB + CONTEXT;
        report.holds("memory", &format!("blocks of {size}: NVML not above 1 GiB and a context"), &found, ok);
    }
    Ok(())
}
