//! Prints the phases side by side, with the ratio to tenants without a virtual cluster and the growth from few to many.

use super::{
    phase::{Kind, Phase, Rest},
    programs::{Both, Usage},
};

/// Prints what there is.
pub fn print(phases: &[Phase]) {
    let Some(first) = phases.first() else { return };
    let names = phases.iter().map(|phase| match phase.kind {
        Kind::Plain => format!("{} without", phase.tenants),
        Kind::Virtual => format!("{} with", phase.tenants),
    });
    let head = names.map(|name| format!("{name:>16}")).collect::<Vec<_>>().concat();
    println!("virtual-clusters-fleet: tenants without and with a virtual cluster; control planes on nodes of kwok");
    println!("  {:<58}{head}{:>10}{:>10}", "", "ratio", "growth");
    let row = |name: &str, value: &dyn Fn(&Phase) -> f64| println!("  {}", line(name, phases, value));
    row("all ready after, s", &|p| p.all);
    row("  a tenant, s", &|p| p.all / tenants(p));
    row("each ready after its application, median, s", &|p| p.each.median);
    row("  longest, s", &|p| p.each.max);
    row("processor time a tenant until then, ms: operators", &|p| each(p, &|u| u.operator.cpu) * 1000.0);
    row("  controller", &|p| each(p, &|u| u.controller.cpu) * 1000.0);
    row("  helm", &|p| each(p, &|u| u.controller.children) * 1000.0);
    row("  API server", &|p| p.load.each(p.tenants).1);
    row("writes a tenant, those of Kubernetes included", &|p| p.writes.sum());
    row("renders a tenant", &|p| p.counters.renders / tenants(p));
    row("passes of the controller a tenant", &|p| p.counters.reconciles / tenants(p));
    row("memory of the larger operator, MiB", &|p| p.rest.end.operator.rss);
    row("  its own pages a tenant, KiB", &|p| grown(p, |both| both.operator));
    row("memory of the controller, MiB", &|p| p.rest.end.controller.rss);
    row("  highest, MiB", &|p| p.rest.end.controller.peak);
    row("  its own pages a tenant, KiB", &|p| grown(p, |both| both.controller));
    row("at rest: writes a minute, without heartbeats", &|p| p.rest.writes.sum() * minute(&p.rest));
    row("  requests of the controller a second", &|p| p.rest.requests / p.rest.seconds);
    row("  passes of the controller a minute", &|p| p.rest.counters.reconciles * minute(&p.rest));
    row("  requests a pass", &|p| p.rest.requests / p.rest.counters.reconciles);
    row("  renders", &|p| p.rest.counters.renders);
    row("  processor time, % of a core: operators", &|p| share(&p.rest, |both| both.operator));
    row("    controller", &|p| share(&p.rest, |both| both.controller));
    row("    API server", &|p| p.rest.load.each(1).1 / 10.0 / p.rest.seconds);
    row("controller restarted: all rendered again after, s", &|p| p.restart.as_ref().map_or(f64::NAN, |r| r.seconds));
    row("  writes a tenant", &|p| p.restart.as_ref().map_or(f64::NAN, |r| r.writes.sum()));
    row("  memory, MiB", &|p| p.restart.as_ref().map_or(f64::NAN, |r| r.memory.controller.rss));
    row("all deleted after, s", &|p| p.gone);
    println!("  writes a tenant: {} without, {} with", first.writes, last(phases, |p| p.writes.to_string()));
    let restarted = last(phases, |p| p.restart.as_ref().map(|r| r.writes.to_string()).unwrap_or_default());
    println!("    after a restart of the controller: {restarted}");
    for phase in phases {
        println!("  writes at rest, {:?}, {}: {}", phase.kind, phase.tenants, phase.rest.writes);
    }
    println!("  heartbeats at rest: {}", last(phases, |p| p.rest.writes.heartbeats()));
    println!("  KubeconfigReady: {}", last(phases, |p| p.rest.message.clone().unwrap_or_default()));
    if let [.., few, many] = phases
        && few.kind == many.kind
    {
        let own = |p: &Phase| p.rest.end.controller.own;
        let more = (own(many) - own(few)) * 1024.0 / (tenants(many) - tenants(few));
        println!("  controller's own pages for each further virtual cluster: {more:.0} KiB");
    }
}

/// A row: ratio of the last phase to the first, and to the one before.
fn line(name: &str, phases: &[Phase], value: &dyn Fn(&Phase) -> f64) -> String {
    let cells = phases.iter().map(|phase| format!("{:>16}", significant(value(phase)))).collect::<Vec<_>>().concat();
    let (ratio, growth) = match phases {
        [plain, few, many] => (value(many) / value(plain), value(many) / value(few)),
        _ => (f64::NAN, f64::NAN),
    };
    let text = |ratio: f64| if ratio.is_finite() { format!("{ratio:.2}") } else { "–".into() };
    format!("{name:<58}{cells}{:>10}{:>10}", text(ratio), text(growth))
}

#[expect(clippy::cast_precision_loss, reason = "hundreds")]
fn tenants(phase: &Phase) -> f64 {
    phase.tenants as f64
}

fn minute(rest: &Rest) -> f64 {
    60.0 / rest.seconds
}

/// Growth until the last tenant was ready, a tenant.
fn each(phase: &Phase, value: &dyn Fn(&Both) -> f64) -> f64 {
    (value(&phase.end) - value(&phase.begin)) / tenants(phase)
}

/// Growth of a program's own pages from before the first tenant to the end of the rest, a tenant, in KiB.
fn grown(phase: &Phase, of: impl Fn(&Both) -> Usage) -> f64 {
    (of(&phase.rest.end).own - of(&phase.begin).own) * 1024.0 / tenants(phase)
}

/// Percent of a core.
fn share(rest: &Rest, of: impl Fn(&Both) -> Usage) -> f64 {
    (of(&rest.end).cpu - of(&rest.begin).cpu) / rest.seconds * 100.0
}

/// Text about the last phase.
fn last(phases: &[Phase], text: impl Fn(&Phase) -> String) -> String {
    phases.last().map(text).unwrap_or_default()
}

/// About three digits.
fn significant(value: f64) -> String {
    match value.abs() {
        x if !x.is_finite() => "–".into(),
        x if x >= 100.0 => format!("{value:.0}"),
        x if x >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_about_three_digits_and_missing_ones_a_dash() {
        assert_eq!([123.4, 12.34, 1.234, 0.0].map(significant), ["123", "12.3", "1.23", "0.00"]);
        assert_eq!([f64::NAN, f64::INFINITY].map(significant), ["–", "–"]);
    }
}
