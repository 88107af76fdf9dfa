//! Operator and agent at rest: memory and processor time, compared with kubelet of the same node, and writes, by the API server's count.

use std::time::{Duration, Instant};

use e2e::{Error, Result, World, scenario, wait::eventually};

use super::{
    many::{become_ready, quantile},
    writes::Writes,
};

/// Pause until new objects have converged.
const SETTLE: Duration = Duration::from_mins(1);
/// Limit until quotas are counted.
const PATIENCE: Duration = Duration::from_mins(15);
const QUIET: Duration = Duration::from_mins(10);
/// `USER_HZ`, the unit of `/proc/PID/stat`: 100 on Linux.
const TICKS_PER_SECOND: f64 = 100.0;

/// Prints RSS in MiB and CPU in percent of a core over ten minutes, with the demo's tenants and pods and `more` tenants.
///
/// # Errors
/// When there was any write meanwhile but leases and kubelets' status updates.
pub async fn measure(world: &World, more: usize) -> Result<()> {
    scenario::onboard(world).await?;
    scenario::start_pods(world).await?;
    if more > 0 {
        let (start, waited) = (Instant::now(), become_ready(world, "bench-", more).await?);
        let (half, most) = (quantile(&waited, 0.5).as_secs_f64(), quantile(&waited, 0.99).as_secs_f64());
        let (took, now) = (start.elapsed().as_secs_f64(), operators(world).await?);
        println!(
            "rest: {more} tenants Ready in {took:.0} s, each p50 {half:.1} s, p99 {most:.1} s; the operators then have {now}"
        );
    }
    settled(world).await?;
    let (before, writes) = (all(world).await?, Writes::of(world).await?);
    tokio::time::sleep(QUIET).await;
    let (after, writes) = (all(world).await?, Writes::of(world).await?.since(&writes, 1));
    let what = format!("{} tenants, four pods, {} minutes", more + 2, QUIET.as_secs() / 60);
    println!("rest: {what}; heartbeats: {}", writes.heartbeats());
    for process in &after {
        let Some(old) = before.iter().find(|p| p.node == process.node && p.pid == process.pid) else { continue };
        let kubelet = after.iter().find(|p| p.node == process.node && p.name == "kubelet").map_or(1.0, |k| k.rss_mib);
        let cpu = (process.ticks - old.ticks) / TICKS_PER_SECOND / QUIET.as_secs_f64() * 100.0;
        println!(
            "  {:<6} {:<20} RSS {:>6.1} MiB, {:.1} of it its own (ratio to kubelet {:.2}), CPU {cpu:.2} % of a core",
            process.node,
            process.name,
            process.rss_mib,
            process.own_mib,
            process.rss_mib / kubelet,
        );
    }
    if writes.sum() > 0.0 {
        return Err(Error::Wrong(format!("rest: {what}: writes at rest: {writes}")));
    }
    Ok(())
}

/// Waits until Kubernetes' controller has counted what was created: with thousands of tenants it writes statuses of quotas for minutes.
async fn settled(world: &World) -> Result<()> {
    eventually("quotas are counted", PATIENCE, || async {
        let before = Writes::of(world).await?;
        tokio::time::sleep(SETTLE).await;
        let since = Writes::of(world).await?.since(&before, 1);
        let counted = since.sum() - since.without("resourcequotas/status").sum();
        Ok(if counted > 0.0 { Err(format!("{counted} statuses of quotas in {} s", SETTLE.as_secs())) } else { Ok(()) })
    })
    .await
}

/// Resident memory of each operator as text: total, and without pages of the program's file.
pub async fn operators(world: &World) -> Result<String> {
    let all = all(world).await?;
    let ours = all.iter().filter(|p| p.name.starts_with("gputenancy-oper"));
    Ok(ours.map(|p| format!("{:.1} MiB ({:.1} its own)", p.rss_mib, p.own_mib)).collect::<Vec<_>>().join(" and "))
}

struct Process {
    node: &'static str,
    pid: String,
    name: String,
    rss_mib: f64,
    own_mib: f64,
    ticks: f64,
}

async fn all(world: &World) -> Result<Vec<Process>> {
    let script = r#"for p in /proc/[0-9]*; do n=$(cat $p/comm 2>/dev/null) || continue; case $n in kubelet|gputenancy-oper*|gputenancy-agen*)
        echo "${p#/proc/} $n $(awk '/^VmRSS/{r=$2} /^RssAnon/{a=$2} END{print r, a}' $p/status) $(awk '{print $14+$15}' $p/stat)";; esac; done"#;
    let mut processes = Vec::new();
    for node in ["gpu-1", "gpu-2", "cpu-1"] {
        for line in world.on_node(node, &["sh", "-c", script]).await?.lines() {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let [pid, name, rss, own, ticks] = fields.as_slice() else { continue };
            let number =
                |text: &str| text.parse::<f64>().map_err(|e| Error::Text { what: line.into(), why: e.to_string() });
            let (rss_mib, own_mib, ticks) = (number(rss)? / 1024.0, number(own)? / 1024.0, number(ticks)?);
            processes.push(Process { node, pid: (*pid).into(), name: (*name).into(), rss_mib, own_mib, ticks });
        }
    }
    Ok(processes)
}
