//! Many processes of one container, and processes that are killed.

use std::{error::Error, process::Child, time::Duration};

use crate::{
    container::{CONTEXT, Container, MIB, end},
    report::Report,
};

/// The processes have their limit together, and a killed one leaves nothing behind.
pub fn check(container: &Container, report: &mut Report) -> Result<(), Box<dyn Error>> {
    for count in [1_u64, 4, 16] {
        // 2 GiB and all contexts but one, which the agent adds to the limit
        let limit = CONTEXT * (count - 1) + 2048 * MIB;
        let share = container.share("processes", limit)?;
        let watch = container.gpu.watch();
        let begun: Result<Vec<Child>, _> =
            (0..count).map(|_| container.begin(Some(&share), "allocate --size 8Mi --count 100000")).collect();
        let outputs = begun?.into_iter().map(end).collect::<Result<Vec<_>, _>>()?;
        let most = watch.end();
        let denied = outputs.iter().filter(|output| output.number("code=") == Some(2.0)).count();
        let found = format!("NVML: {} MiB at most of {}; {denied} were refused", most / MIB, (limit + CONTEXT) / MIB);
        let ok = most <= limit + CONTEXT && denied > 0 && outputs.iter().all(|output| output.ok);
        report.holds("processes", &format!("{count} allocate blocks of 8 MiB until one is refused"), &found, ok);
    }
    let share = container.share("processes", 2048 * MIB)?;
    for round in 0..20_u64 {
        let mut child = container.begin(Some(&share), "allocate --size 2Mi --count 800 --hold")?;
        std::thread::sleep(Duration::from_millis(200 + round * 40));
        child.kill()?;
        child.wait()?;
    }
    let after = container.work(Some(&share), "allocate --count 100")?;
    let left = share.usage.used();
    let first = format!("{} {left} bytes counted at the end", after.text.lines().next().unwrap_or(""));
    let ok = after.number("granted=") == Some(32.0) && left <= CONTEXT;
    report.holds("processes", "after 20 kills while allocating: the whole of 2 GiB is there", &first, ok);
    Ok(())
}
