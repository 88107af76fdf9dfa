//! What the status says about memory limits.

use gputenancy_crds::Isolation;
use gputenancy_decisions::fleet_view::MemoryLimit;

use super::*;

fn with_limits(limits: &[(&str, Isolation, &[&str])]) -> Observed {
    let mut seen = converged(&json!({}));
    let limit = |(ns, means, gpus): &(&str, Isolation, &[&str])| {
        let unlimited = gpus.iter().map(|gpu| ((*gpu).to_owned(), "limits are off: switch them on".to_owned()));
        ((*ns).to_owned(), MemoryLimit { means: *means, unlimited: unlimited.collect() })
    };
    seen.view = Arc::new(FleetView { limits: limits.iter().map(limit).collect(), ..view() });
    seen
}

#[test]
fn tenant_reports_the_weakest_means_of_all_its_namespaces() {
    let enforcement = |limits: &[(&str, Isolation, &[&str])]| status_of(&with_limits(limits), None).enforcement;
    assert_eq!(enforcement(&[]), None, "no pod has a device");
    assert_eq!(enforcement(&[("b1", Isolation::None, &["GPU 0 of node n"])]), None, "of another tenant");
    let (hardware, software) = (("a1", Isolation::Hardware, &[][..]), ("a2", Isolation::Software, &[][..]));
    assert_eq!(enforcement(&[hardware]), Some(Isolation::Hardware));
    assert_eq!(enforcement(&[hardware, software]), Some(Isolation::Software));
}

#[test]
fn pods_without_a_limit_are_a_condition_with_gpus_and_remedy_and_the_tenant_stays_ready() {
    let found = |limits: &[(&str, Isolation, &[&str])]| {
        let conditions = status_of(&with_limits(limits), None).conditions;
        let limited = conditions.iter().find(|c| c.type_ == "MemoryLimited").cloned();
        let ready = conditions.iter().find(|c| c.type_ == "Ready").map(|c| c.status.clone()).unwrap();
        limited.map(|c| (c.status, c.reason, c.message, ready))
    };
    assert_eq!(found(&[]), None);
    let (status, reason, ..) = found(&[("a1", Isolation::Software, &[])]).unwrap();
    assert_eq!((status.as_str(), reason.as_str()), ("True", "Limited"));
    let gpus = ["GPU 0 of node n", "GPU 1 of node n", "GPU 2 of node n", "GPU 3 of node n", "GPU 4 of node n"];
    let (status, reason, message, ready) =
        found(&[("a1", Isolation::None, &gpus), ("a2", Isolation::Hardware, &[])]).unwrap();
    assert_eq!((status.as_str(), reason.as_str(), ready.as_str()), ("False", "NotLimited", "True"));
    assert!(message.contains("GPU 0 of node n, ") && message.contains("and 1 more"), "{message}");
    assert!(message.contains("switch them on") && message.contains("device.mig"), "{message}");
}
