//! Validation of the custom resources by the API server: one case for each rule.

use e2e::{
    World,
    actor::{Actor, Verb},
    fixtures::merged,
    product,
};
use serde_json::{Value, json};

/// `None`: admitted. `Some(text)`: refused with this text.
type Case = (&'static str, &'static str, Value, Option<&'static str>);

fn profile(device: Value) -> Value {
    json!({"device": device, "support": {"expected": "shares the board's power", "incident": "less memory than stated"}})
}

fn mig() -> Value {
    profile(json!({"mig": {"profile": "1g.10gb"}}))
}

fn shared() -> Value {
    profile(json!({"timeSlice": {"replicas": 4}}))
}

#[allow(clippy::too_many_lines, reason = "a table")]
fn profiles() -> Vec<Case> {
    let case = |name, spec, refusal| ("gpuprofiles", name, spec, refusal);
    let one_device = Some("spec.device: write exactly one of whole, mig, timeSlice, mps, fraction");
    let either = Some("spec.device.mig: write either profile");
    let mps = Some("spec.device.mps: write either replicas (an equal split) or both memory and threads");
    let untrusted = Some("spec.trust: a shared device cannot be offered to Untrusted tenants");
    let exclusive = Some("spec.resourceName: a shared profile may not use the name of an exclusive device");
    let unknown = Some("spec.resourceName: policies and quotas know GPUs by their names");
    let canary =
        Some("spec.resourceName: names that begin with gputenancy.io/canary_ are for the operator's canary pods");
    let named = |resource: &str| merged(mig(), json!({"resourceName": resource}));
    let evidence = json!({"p99Milliseconds": 40, "memoryHeadroomPercent": 20, "measuredAt": "2026-11-24"});
    let shared_by = |device: &str, replicas: i32, sharing: Value| {
        let unlimited = profile(json!({device: {"replicas": replicas}}));
        if sharing.is_null() { unlimited } else { merged(unlimited, json!({"sharing": sharing})) }
    };
    let slices =
        |replicas: i32| profile(json!({"timeSlice": {"replicas": replicas, "of": {"mig": {"profile": "1g.10gb"}}}}));
    let limit = Some("spec.device: replicas are more than spec.sharing.maxReplicas (default 8)");
    let support = Some("spec.support: say in expected what a user must accept");
    vec![
        case("whole", profile(json!({"whole": {}})), None),
        case("mig-by-name", mig(), None),
        case("mig-media", profile(json!({"mig": {"profile": "1g.10gb+me"}})), None),
        case("mig-all-media", profile(json!({"mig": {"profile": "1g.24gb+me.all"}})), None),
        case("mig-by-need", profile(json!({"mig": {"slices": 2, "memory": "19Gi"}})), None),
        case("mig-by-fractional-memory", profile(json!({"mig": {"memory": "1.5Gi"}})), None),
        case("mig-by-bytes", profile(json!({"mig": {"memory": 10_737_418_240_i64}})), None),
        case("mig-no-memory", profile(json!({"mig": {"memory": "0Gi"}})), Some("spec.device.mig.memory")),
        case("mig-zero-bytes", profile(json!({"mig": {"memory": 0}})), Some("spec.device.mig.memory")),
        case(
            "fraction-below-zero",
            profile(json!({"fraction": {"memory": "-1Gi", "compute": 25}})),
            Some("spec.device.fraction.memory"),
        ),
        case("null-fields", profile(json!({"whole": null, "mig": {"profile": "1g.10gb", "memory": null}})), None),
        case("time-slice", merged(shared(), json!({"trust": "Internal"})), None),
        case("mps-equal", profile(json!({"mps": {"replicas": 2}})), None),
        case("mps-memory-and-threads", profile(json!({"mps": {"memory": "10Gi", "threads": 25}})), None),
        case("fraction", profile(json!({"fraction": {"memory": "10Gi", "compute": 25}})), None),
        case(
            "fraction-with-idle-time",
            profile(json!({"fraction": {"memory": "10Gi", "compute": 25, "computeMode": "Burst"}})),
            None,
        ),
        case(
            "whole-time-and-idle-time",
            profile(json!({"fraction": {"memory": "10Gi", "compute": 100, "computeMode": "Burst"}})),
            Some("leave computeMode out, or write a lower compute"),
        ),
        case("priced", merged(mig(), json!({"price": {"perHour": "0.51", "currency": "USD"}})), None),
        case("resource-name", merged(shared(), json!({"resourceName": "gputenancy.io/small", "maxPerPod": 1})), None),
        case("no-device", profile(json!({})), one_device),
        case("two-devices", profile(json!({"whole": {}, "mig": {"profile": "1g.10gb"}})), one_device),
        case("mig-empty", profile(json!({"mig": {}})), either),
        case("mig-both", profile(json!({"mig": {"profile": "1g.10gb", "slices": 1}})), either),
        case("mig-misspelt", profile(json!({"mig": {"profile": "mig-1g.10gb"}})), Some("spec.device.mig.profile")),
        case("mig-memory", profile(json!({"mig": {"memory": "10 GB"}})), Some("spec.device.mig.memory")),
        case(
            "one-replica",
            profile(json!({"timeSlice": {"replicas": 1}})),
            Some("spec.device.timeSlice.replicas: write 2 or more; one replica is an exclusive device"),
        ),
        case("mps-one", profile(json!({"mps": {"replicas": 1}})), Some("spec.device.mps.replicas: write 2 or more")),
        case("mps-memory-without-threads", profile(json!({"mps": {"memory": "10Gi"}})), mps),
        case("mps-both", profile(json!({"mps": {"replicas": 2, "memory": "10Gi", "threads": 5}})), mps),
        case("mps-nothing", profile(json!({"mps": {}})), mps),
        case(
            "too-much",
            profile(json!({"fraction": {"memory": "1Gi", "compute": 101}})),
            Some("less than or equal to 100"),
        ),
        case("shared-untrusted", merged(shared(), json!({"trust": "Untrusted"})), untrusted),
        case("shared-as-gpu", merged(shared(), json!({"resourceName": "nvidia.com/gpu"})), exclusive),
        case("shared-as-mig", merged(shared(), json!({"resourceName": "nvidia.com/mig-1g.10gb"})), exclusive),
        case("canary-resource-name", named("gputenancy.io/canary_0_4"), canary),
        case("mig-as-gpu", named("nvidia.com/gpu"), None),
        case("no-domain", named("gpu"), Some("spec.resourceName")),
        case("other-domain", named("example.com/small"), unknown),
        case(
            "two-shares-per-pod",
            merged(shared(), json!({"maxPerPod": 2})),
            Some("spec.maxPerPod: a pod gets one share"),
        ),
        case("replicas-default-limit", shared_by("timeSlice", 8, Value::Null), None),
        case("replicas-above-default-limit", shared_by("timeSlice", 9, Value::Null), limit),
        case("mps-above-default-limit", shared_by("mps", 9, Value::Null), limit),
        case("replicas-above-own-limit", shared_by("timeSlice", 5, json!({"maxReplicas": 4})), limit),
        case(
            "limit-without-evidence",
            shared_by("timeSlice", 12, json!({"maxReplicas": 12})),
            Some("spec.sharing.maxReplicas: more than 8 needs a measurement or a reason"),
        ),
        case(
            "limit-with-evidence",
            shared_by("timeSlice", 12, json!({"maxReplicas": 12, "evidence": evidence.clone()})),
            None,
        ),
        case(
            "production-without-a-pilot",
            shared_by("mps", 4, json!({"maxReplicas": 4, "production": true, "evidence": evidence.clone()})),
            Some("spec.sharing.production: a production profile needs the results of a pilot"),
        ),
        case(
            "production-with-a-pilot",
            shared_by(
                "mps",
                4,
                json!({"production": true, "evidence": merged(evidence.clone(), json!({
                    "throughputPercent": 180, "failure": "the others ended with it",
                    "latencies": [{"pods": 1, "p99Milliseconds": 11}, {"pods": 4, "p99Milliseconds": 40}],
                }))}),
            ),
            None,
        ),
        case(
            "seventeen-slices-of-an-instance",
            merged(slices(17), json!({"sharing": {"maxReplicas": 32, "reason": "a course"}})),
            Some("spec.device.timeSlice.replicas: at most 16 pods share a MIG instance"),
        ),
        case("slices-of-an-instance", slices(4), None),
        case("slices-as-such", merged(slices(4), json!({"resourceName": "nvidia.com/mig-1g.10gb.shared"})), None),
        case("slices-as-instances", merged(slices(4), json!({"resourceName": "nvidia.com/mig-1g.10gb"})), exclusive),
        case(
            "slices-of-an-instance-with-an-interval",
            profile(json!({"timeSlice": {"replicas": 4, "interval": "Long", "of": {"mig": {"profile": "1g.10gb"}}}})),
            Some("spec.device.timeSlice.interval: NVIDIA's driver has no time-slice length for MIG instances"),
        ),
        case("limit-with-reason", shared_by("mps", 12, json!({"maxReplicas": 12, "reason": "a course"})), None),
        case(
            "limit-with-half-evidence",
            shared_by("timeSlice", 12, json!({"maxReplicas": 12, "evidence": {"p99Milliseconds": 40}})),
            Some("spec.sharing.evidence.memoryHeadroomPercent: Required value"),
        ),
        case(
            "limit-measured-on-no-day",
            shared_by(
                "timeSlice",
                12,
                json!({"maxReplicas": 12, "evidence": merged(evidence, json!({"measuredAt": "2026-02-31"}))}),
            ),
            Some("spec.sharing.evidence.measuredAt"),
        ),
        case(
            "limit-of-whole",
            merged(profile(json!({"whole": {}})), json!({"sharing": {"maxReplicas": 4}})),
            Some("spec.sharing: it is about the pods that share device.timeSlice and device.mps"),
        ),
        case("no-support", json!({"device": {"whole": {}}}), Some("spec.support: Required value")),
        case("empty-support", json!({"device": {"whole": {}}, "support": {"expected": "", "incident": "x"}}), support),
        case(
            "cheap",
            merged(mig(), json!({"price": {"perHour": "0,51", "currency": "USD"}})),
            Some("spec.price.perHour"),
        ),
        case(
            "euro-sign",
            merged(mig(), json!({"price": {"perHour": "1", "currency": "eur"}})),
            Some("spec.price.currency"),
        ),
        case("typo", merged(mig(), json!({"prise": {}})), Some("unknown field \"spec.prise\"")),
        case(
            "a-name-of-more-than-forty-characters-as-such",
            mig(),
            Some("metadata.name: use at most 40 characters, the name becomes part of resource names"),
        ),
    ]
}

fn pool() -> Value {
    json!({"nodeSelector": {"matchLabels": {"gpu": "a100"}}, "profiles": ["mig-1g", "gpu"]})
}

/// How the devices of a pool are named and chosen.
fn strategies() -> Vec<Case> {
    let case = |name, more, refusal| ("gpupools", name, merged(pool(), more), refusal);
    let single = |more: Value| merged(json!({"strategy": "Single", "profiles": ["mig-1g"]}), more);
    vec![
        case("strategy-single", single(json!({})), None),
        case(
            "single-of-two-profiles",
            single(json!({"profiles": ["mig-1g", "gpu"]})),
            Some("spec.profiles: with strategy: Single every device of the pool is of one MIG profile"),
        ),
        case(
            "single-with-spare",
            single(json!({"layout": {"spare": {"policy": "Whole"}}})),
            Some("spec.layout: with strategy: Single every GPU of the pool has as many instances"),
        ),
        case(
            "single-by-nvidia",
            single(json!({"advertiser": "NvidiaDevicePlugin"})),
            Some("spec.strategy: Single needs advertiser: Agent"),
        ),
        case("distributed", json!({"allocation": "Distributed"}), None),
        case(
            "distributed-by-nvidia",
            json!({"allocation": "Distributed", "advertiser": "NvidiaDevicePlugin"}),
            Some("spec.allocation: NVIDIA's device plugin chooses devices by its own rules"),
        ),
        case("minimum", json!({"enforcement": {"minimum": "Software"}}), None),
        case("minimum-unknown", json!({"enforcement": {"minimum": "Shim"}}), Some("spec.enforcement.minimum")),
        case(
            "minimum-by-nvidia",
            json!({"enforcement": {"minimum": "Software"}, "advertiser": "NvidiaDevicePlugin"}),
            Some("spec.enforcement.minimum: NVIDIA's device plugin serves shares without a limit"),
        ),
        case("no-minimum-by-nvidia", json!({"enforcement": {}, "advertiser": "NvidiaDevicePlugin"}), None),
    ]
}

fn pools() -> Vec<Case> {
    let case = |name, more, refusal| ("gpupools", name, merged(pool(), more), refusal);
    let fixed = |profile: &str| json!([{"gpus": "0-3,5", "profiles": [{"name": profile, "count": 7}]}]);
    let mode = Some("spec.layout: mode Fixed needs the list fixed, and only it");
    let spare = Some("spec.layout.spare: policy Fill needs profile, and only it");
    let verify = |canary: Value| json!({"verify": {"canary": canary}});
    let at_once = Some("spec.disruption.maxUnavailable: write a number of GPUs of at least 1");
    vec![
        case("defaults", json!({}), None),
        case("tainted", json!({"taint": {"key": "nvidia.com/gpu"}}), None),
        case(
            "taint-prefer-no-schedule",
            json!({"taint": {"key": "gpu", "value": "a100", "effect": "PreferNoSchedule"}}),
            None,
        ),
        case(
            "taint-that-evicts",
            json!({"taint": {"key": "gpu", "effect": "NoExecute"}}),
            Some("Unsupported value: \"NoExecute\""),
        ),
        case(
            "taint-of-kubernetes",
            json!({"taint": {"key": "node.kubernetes.io/gpu"}}),
            Some("spec.taint.key: taints of this name tell how a node fares"),
        ),
        case(
            "taint-with-spaces",
            json!({"taint": {"key": "a gpu"}}),
            Some("spec.taint.key: write a key as labels have it"),
        ),
        case(
            "taint-value",
            json!({"taint": {"key": "gpu", "value": "a/b"}}),
            Some("spec.taint.value: write letters, digits"),
        ),
        case("fixed", json!({"layout": {"mode": "Fixed", "fixed": fixed("mig-1g")}}), None),
        case("fill", json!({"layout": {"spare": {"policy": "Fill", "profile": "mig-1g"}}}), None),
        case(
            "a-third",
            json!({"disruption": {"maxUnavailable": "33%", "notice": "15m", "drainTimeout": "1h30m"}}),
            None,
        ),
        case(
            "by-expression",
            json!({"nodeSelector": {"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}}),
            None,
        ),
        case("every-node", json!({"nodeSelector": {}}), Some("spec.nodeSelector: write at least one label")),
        case("no-profiles", json!({"profiles": []}), Some("spec.profiles")),
        case("profile-twice", json!({"profiles": ["gpu", "gpu"]}), Some("Duplicate value: \"gpu\"")),
        case("fixed-without-list", json!({"layout": {"mode": "Fixed"}}), mode),
        case("list-without-fixed", json!({"layout": {"fixed": fixed("mig-1g")}}), mode),
        case("fill-without-profile", json!({"layout": {"spare": {"policy": "Fill"}}}), spare),
        case("keep-with-profile", json!({"layout": {"spare": {"policy": "Keep", "profile": "mig-1g"}}}), spare),
        case(
            "fill-with-another",
            json!({"layout": {"spare": {"policy": "Fill", "profile": "mig-3g"}}}),
            Some("spec.layout.spare.profile: this profile is not one of the pool's"),
        ),
        case(
            "fixed-of-another",
            json!({"layout": {"mode": "Fixed", "fixed": fixed("mig-3g")}}),
            Some("spec.layout.fixed: every profile named here must be one of the pool's"),
        ),
        case(
            "bad-index",
            json!({"layout": {"mode": "Fixed", "fixed": [{"gpus": "0..3", "profiles": []}]}}),
            Some("fixed[0].gpus"),
        ),
        case("max-unavailable-zero", json!({"disruption": {"maxUnavailable": 0}}), at_once),
        case("max-unavailable-zero-percent", json!({"disruption": {"maxUnavailable": "0%"}}), at_once),
        case("max-unavailable-over-100", json!({"disruption": {"maxUnavailable": "101%"}}), at_once),
        case("canary", verify(json!({"image": "registry.example.com/vectoradd:1"})), None),
        case("canary-with-command", verify(json!({"image": "x", "command": ["/x", "-y"], "timeout": "90s"})), None),
        case(
            "canary-without-image",
            verify(json!({"command": ["/x"]})),
            Some("spec.verify.canary.image: Required value"),
        ),
        case(
            "canary-with-spaces",
            verify(json!({"image": "x y"})),
            Some("spec.verify.canary.image: write a name without spaces"),
        ),
        case(
            "canary-at-once",
            verify(json!({"image": "x", "timeout": "1s"})),
            Some("spec.verify.canary.timeout: write at least 10s and at most 1h"),
        ),
        case(
            "canary-of-nvidia",
            merged(verify(json!({"image": "x"})), json!({"advertiser": "NvidiaDevicePlugin"})),
            Some("spec.verify.canary: NVIDIA's device plugin cannot keep a new device for a canary pod alone"),
        ),
        case("notice-in-days", json!({"disruption": {"notice": "1d"}}), Some("spec.disruption.notice: write a")),
        case("hour-and-a-half", json!({"disruption": {"notice": "1.5h", "drainTimeout": "500ms"}}), None),
        case("notice-negative", json!({"disruption": {"notice": "-5m"}}), Some("spec.disruption.notice")),
    ]
    .into_iter()
    .chain(windows())
    .collect()
}

fn windows() -> Vec<Case> {
    let case =
        |name, disruption, refusal| ("gpupools", name, merged(pool(), json!({"disruption": disruption})), refusal);
    let window = |schedule: &str, duration: &str, zone: &str| json!([{"schedule": schedule, "duration": duration, "timeZone": zone}]);
    let saturday = |duration: &str| window("0 2 * * 6", duration, "Europe/Berlin");
    vec![
        case("saturdays", json!({"windows": saturday("4h"), "notice": "15m", "unmanagedPods": "Evict"}), None),
        case("utc", json!({"windows": [{"schedule": "30 1 1 * *", "duration": "30m"}]}), None),
        case(
            "six-fields",
            json!({"windows": window("0 0 2 * * 6", "4h", "UTC")}),
            Some("spec.disruption.windows.schedule: write five fields as in a CronJob"),
        ),
        case(
            "no-time",
            json!({"windows": saturday("30s")}),
            Some("spec.disruption.windows.duration: write at least one minute"),
        ),
        case(
            "offset",
            json!({"windows": window("0 2 * * 6", "4h", "+02:00")}),
            Some("spec.disruption.windows.timeZone: write UTC or an IANA name"),
        ),
        case(
            "too-late",
            json!({"windows": saturday("1h"), "notice": "2h"}),
            Some("spec.disruption.notice: longer than every window"),
        ),
        case("unknown-unmanaged-pods", json!({"unmanagedPods": "Kill"}), Some("spec.disruption.unmanagedPods")),
    ]
}

fn tenants() -> Vec<Case> {
    let tenant = json!({"namespaces": [{"name": "team-a"}], "gpus": [{"profile": "gpu", "count": 2}]});
    let case = move |name, more, refusal| ("gputenants", name, merged(tenant.clone(), more), refusal);
    let owner = Some("spec.owners, spec.viewers: write namespace for a ServiceAccount, and only for it");
    let theirs = Some("spec.namespaces: choose a name of the team's own");
    let resources = Some("spec.resources: GPU resources are budgeted in spec.gpus by profile");
    let many: serde_json::Map<String, Value> = (0..33).map(|i| (format!("count/kind{i}"), json!("1"))).collect();
    let cap = Some("spec.gpuEquivalents: write whole GPUs as a decimal number above 0 in quotes");
    vec![
        case("small", json!({}), None),
        case("cap", json!({"gpuEquivalents": "3.5"}), None),
        case("cap-in-thousandths", json!({"gpuEquivalents": "0.125"}), None),
        case("cap-maximum", json!({"gpuEquivalents": "99999"}), None),
        case("cap-zero", json!({"gpuEquivalents": "0.0"}), cap),
        case("cap-negative", json!({"gpuEquivalents": "-1"}), cap),
        case("cap-too-precise", json!({"gpuEquivalents": "0.0625"}), cap),
        case("cap-with-suffix", json!({"gpuEquivalents": "3500m"}), cap),
        case("cap-in-words", json!({"gpuEquivalents": "three"}), cap),
        case("cap-as-number", json!({"gpuEquivalents": 3.5}), Some("spec.gpuEquivalents: Invalid value")),
        case("sharing", json!({"sharing": {"acknowledgedBy": "lead@example.com"}}), None),
        case("sharing-dated", json!({"sharing": {"acknowledgedBy": "team-a", "acknowledgedAt": "2026-11-24"}}), None),
        case("sharing-without-a-name", json!({"sharing": {"acknowledgedBy": ""}}), Some("spec.sharing.acknowledgedBy")),
        case(
            "sharing-without-a-name",
            json!({"sharing": {"acknowledgedAt": "2026-11-24"}}),
            Some("spec.sharing.acknowledgedBy: Required value"),
        ),
        case(
            "sharing-on-no-day",
            json!({"sharing": {"acknowledgedBy": "x", "acknowledgedAt": "24.11.2026"}}),
            Some("spec.sharing.acknowledgedAt"),
        ),
        case("no-guarantees", json!({"gpus": []}), None),
        case(
            "owners",
            json!({"owners": [{"kind": "Group", "name": "team-a"}, {"kind": "User", "name": "ann@x.org"}]}),
            None,
        ),
        case("ci", json!({"owners": [{"kind": "ServiceAccount", "name": "ci", "namespace": "build"}]}), None),
        case("limits", json!({"resources": {"requests.cpu": "64", "requests.memory": "512Gi", "pods": 200}}), None),
        case("limits-in-fractions", json!({"resources": {"requests.cpu": "1.5", "requests.memory": "1.5Ti"}}), None),
        case("limit-below-zero", json!({"resources": {"pods": "-1"}}), Some("spec.resources")),
        case("account-without-namespace", json!({"owners": [{"kind": "ServiceAccount", "name": "ci"}]}), owner),
        case("group-with-namespace", json!({"owners": [{"kind": "Group", "name": "g", "namespace": "n"}]}), owner),
        case("classes-and-queues", json!({"priorityClasses": ["batch"], "queues": ["team-a"]}), None),
        case("no-class", json!({"priorityClasses": []}), None),
        case(
            "class-of-the-cluster",
            json!({"priorityClasses": ["system-node-critical"]}),
            Some("spec.priorityClasses: system- classes are the cluster's own"),
        ),
        case("viewers", json!({"viewers": [{"kind": "Group", "name": "guests"}]}), None),
        case("viewer-without-namespace", json!({"viewers": [{"kind": "ServiceAccount", "name": "ci"}]}), owner),
        case("pull-secrets", json!({"imagePullSecrets": ["registry", "mirror.example.com"]}), None),
        case(
            "pull-secret-address",
            json!({"imagePullSecrets": ["registry.example.com/team"]}),
            Some("spec.imagePullSecrets: write names of Secrets of the operator's namespace, such as registry"),
        ),
        case("pull-secret-twice", json!({"imagePullSecrets": ["registry", "registry"]}), Some("Duplicate value")),
        case("pull-secret-empty", json!({"imagePullSecrets": [""]}), Some("spec.imagePullSecrets[0]")),
        case(
            "pull-secrets-too-many",
            json!({"imagePullSecrets": ["a", "b", "c", "d", "e", "f", "g", "h", "i"]}),
            Some("must have at most 8 items"),
        ),
        case("open", json!({"network": "Open", "podSecurity": "Baseline"}), None),
        case("unknown-network", json!({"network": "Ajar"}), Some("spec.network: Unsupported value")),
        case(
            "pod-security-privileged",
            json!({"podSecurity": "Privileged"}),
            Some("spec.podSecurity: Unsupported value"),
        ),
        case("adopt", json!({"namespaces": [{"name": "old", "adopt": true}]}), None),
        case("kube", json!({"namespaces": [{"name": "kube-system"}]}), theirs),
        case("default", json!({"namespaces": [{"name": "default", "adopt": true}]}), theirs),
        case("no-namespace", json!({"namespaces": []}), Some("spec.namespaces")),
        case("bad-namespace", json!({"namespaces": [{"name": "Team_A"}]}), Some("spec.namespaces[0].name")),
        case("same-namespace", json!({"namespaces": [{"name": "a"}, {"name": "a"}]}), Some("Duplicate value")),
        case(
            "same-profile",
            json!({"gpus": [{"profile": "g", "count": 1}, {"profile": "g", "count": 2}]}),
            Some("Duplicate value"),
        ),
        case("negative-count", json!({"gpus": [{"profile": "g", "count": -1}]}), Some("spec.gpus[0].count")),
        case("fractional-count", json!({"gpus": [{"profile": "g", "count": 0.5}]}), Some("spec.gpus[0].count")),
        case("gpu-in-resources", json!({"resources": {"requests.nvidia.com/gpu": "8"}}), resources),
        case("own-resource-in-resources", json!({"resources": {"requests.gputenancy.io/small": "8"}}), resources),
        case("too-many-resources", json!({"resources": many}), Some("spec.resources")),
        case("unknown-trust", json!({"trust": "Friend"}), Some("spec.trust: Unsupported value")),
        case(
            "a-name-of-more-than-fifty-characters-which-is-really-too-long",
            json!({}),
            Some("metadata.name: use at most 50 characters, the name becomes part of object names"),
        ),
    ]
}

fn borrowers() -> Vec<Case> {
    let tenant = json!({"namespaces": [{"name": "team-a"}]});
    let case = move |name, more, refusal| ("gputenants", name, merged(tenant.clone(), more), refusal);
    vec![
        case("sharing-empty", json!({"sharing": {}}), Some("spec.sharing: write acknowledgedBy for shares of a GPU")),
        case("sharing-group", json!({"sharing": {"group": "research", "weight": 3}}), None),
        case(
            "sharing-group-capitals",
            json!({"sharing": {"group": "Research"}}),
            Some("spec.sharing.group: write lowercase"),
        ),
        case("sharing-no-weight", json!({"sharing": {"weight": 0}}), Some("spec.sharing.weight")),
        case("lends", json!({"gpus": [{"profile": "p", "count": 2, "borrow": 4, "lend": 2}]}), None),
        case(
            "borrows-with-a-cap",
            json!({"gpus": [{"profile": "p", "count": 2, "borrow": 1}], "gpuEquivalents": "2"}),
            Some("spec.gpus[].borrow: a cap over all profiles does not count what is borrowed"),
        ),
        case(
            "lends-more",
            json!({"gpus": [{"profile": "p", "count": 2, "lend": 3}]}),
            Some("spec.gpus[].lend: a team can lend what it is guaranteed"),
        ),
        case(
            "borrows-less-than-nothing",
            json!({"gpus": [{"profile": "p", "count": 2, "borrow": -1}]}),
            Some("spec.gpus[0].borrow"),
        ),
    ]
}

fn nodes() -> Vec<Case> {
    let case = |name, gpu: Value, refusal| {
        let gpu = merged(json!({"uuid": "GPU-11111111-2222-3333-4444-555555555555"}), gpu);
        ("gpunodes", name, json!({"gpus": [gpu]}), refusal)
    };
    let slice = |start: i64| json!({"start": start, "profile": "1g.10gb"});
    vec![
        case("whole", json!({}), None),
        case("mig-empty", json!({"mig": true}), None),
        case("instances-with-hold", json!({"mig": true, "instances": [slice(0), slice(4)], "hold": [4]}), None),
        case(
            "instances-without-mig",
            json!({"instances": [slice(0)]}),
            Some("spec.gpus: instances exist only with MIG on; write mig: true, or leave instances out"),
        ),
        case(
            "same-start",
            json!({"mig": true, "instances": [slice(0), slice(0)]}),
            Some("duplicate entries for key [start=0]"),
        ),
        case("off-the-board", json!({"mig": true, "instances": [slice(16)]}), Some("instances[0].start")),
    ]
}

#[tokio::test]
async fn crds_accept_valid_and_reject_invalid_objects() {
    let world = World::enter_api().await.unwrap();
    let kinds =
        [("gpuprofiles", "GpuProfile"), ("gpupools", "GpuPool"), ("gputenants", "GpuTenant"), ("gpunodes", "GpuNode")];
    let cases: Vec<Case> = [profiles(), pools(), strategies(), tenants(), borrowers(), nodes()].concat();
    assert!(cases.len() >= 40, "{} cases", cases.len());
    let mut wrong = vec![];
    for (plural, name, spec, expected) in &cases {
        let kind = kinds.iter().find(|(p, _)| p == plural).map(|(_, k)| k).unwrap();
        let object =
            json!({"apiVersion": "gputenancy.io/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec});
        let path = format!("/apis/gputenancy.io/v1alpha1/{plural}");
        let answer = match *plural {
            // only the operator may write the spec, and only the node's agent creates the object
            "gpunodes" => {
                let node = merged(object, json!({"metadata": {"name": "gpu-1"}}));
                Actor::Operator.may(&world.client, Verb::Apply, &format!("{path}/gpu-1"), &node).await
            }
            _ => Actor::Admin.may(&world.client, Verb::Create, &path, &object).await,
        };
        match (answer.unwrap(), expected) {
            (Ok(_), None) if *plural == "gpunodes" => {}
            (Ok(object), None) => assert_eq!(object["status"]["observedGeneration"], -1, "{plural}/{name}"),
            (Err(status), Some(words)) if status.message.contains(words) => {}
            (answer, expected) => {
                wrong.push(format!("{plural}/{name}: expected {expected:?}, got {:?}", answer.map_err(|s| s.message)));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {} cases:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

#[tokio::test]
async fn crds_refuse_another_device_and_another_size_of_mps_shares() {
    let world = World::enter_api().await.unwrap();
    let mps = json!({"mps": {"memory": "10Gi", "threads": 25}});
    let fraction = json!({"fraction": {"memory": "10Gi", "compute": 25}});
    let turns = |replicas: i32, interval: &str| json!({"timeSlice": {"replicas": replicas, "interval": interval}});
    let kind = Some("spec.device: whole, mig, timeSlice, mps and fraction cannot replace each other");
    let slices = json!({"timeSlice": {"replicas": 4, "of": {"mig": {"profile": "1g.10gb"}}}});
    let hardware = Some("spec.device.timeSlice.of: the shared hardware cannot change");
    let cases: [(&str, Value, Value, Option<&str>); 12] = [
        ("slices", slices.clone(), json!({"timeSlice": {"replicas": 6}}), None),
        ("slices", slices.clone(), json!({"timeSlice": {"of": null}}), hardware),
        ("slices", slices, json!({"timeSlice": {"of": {"mig": {"profile": "2g.20gb"}}}}), hardware),
        ("turns", turns(4, "Default"), turns(6, "Long"), None),
        ("turns", turns(4, "Default"), json!({"whole": {}, "timeSlice": null}), kind),
        ("turns", turns(4, "Default"), merged(fraction.clone(), json!({"timeSlice": null})), kind),
        (
            "mps",
            mps.clone(),
            json!({"mps": {"memory": "20Gi"}}),
            Some("spec.device.mps: the size of a share cannot change"),
        ),
        ("mps", mps.clone(), json!({"mps": {"memory": null, "threads": null, "replicas": 4}}), Some("spec.device.mps")),
        ("mps", mps.clone(), mps, None),
        ("fraction", fraction.clone(), json!({"fraction": {"memory": "12Gi", "compute": 30}}), None),
        ("fraction", fraction.clone(), json!({"fraction": null, "mig": {"profile": "1g.10gb"}}), kind),
        ("fraction", fraction.clone(), fraction, None),
    ];
    for (name, before, patch, refusal) in cases {
        let object = json!({"apiVersion": "gputenancy.io/v1alpha1", "kind": "GpuProfile", "metadata": {"name": name}, "spec": profile(before)});
        world.set(&[object]).await.unwrap();
        let path = format!("/apis/gputenancy.io/v1alpha1/gpuprofiles/{name}");
        let change = json!({"spec": {"device": patch}});
        Actor::Admin.check(&world.client, Verb::Merge, &path, &change, refusal).await.unwrap();
        let support = json!({"spec": {"support": {"expected": "another sentence"}}});
        Actor::Admin.check(&world.client, Verb::Merge, &path, &support, None).await.unwrap();
    }
}

/// The YAML blocks of a Markdown text, as one stream of documents.
fn yaml_blocks(text: &str) -> String {
    let blocks = text.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next());
    blocks.collect::<Vec<_>>().join("---\n")
}

#[tokio::test]
async fn crds_accept_readme_and_sample_manifests() {
    let world = World::enter_api().await.unwrap();
    let root = product::root();
    let shown = yaml_blocks(&std::fs::read_to_string(root.join("README.md")).unwrap());
    assert_eq!(shown.matches("kind: ").count() - shown.matches("kind: Group").count(), 3, "{shown}");
    let file = tempfile::Builder::new().suffix(".yaml").tempfile().unwrap();
    std::fs::write(file.path(), shown).unwrap();
    let samples = [
        "catalog.yaml",
        "pool.yaml",
        "tenants.yaml",
        "dedicated-pool.yaml",
        "mig-manager/pool.yaml",
        "budget/mixed.yaml",
        "pull-secrets.yaml",
        "registries-and-hosts.yaml",
        "queues/pool.yaml",
        "queues/tenants.yaml",
    ]
    .map(|name| root.join("samples").join(name));
    let examples = crate::offline::chart::examples(&[]);
    let all: Vec<&str> = examples.values().map(String::as_str).collect();
    let shipped = tempfile::Builder::new().suffix(".yaml").tempfile().unwrap();
    std::fs::write(shipped.path(), all.join("---\n")).unwrap();
    for path in samples.iter().map(std::path::PathBuf::as_path).chain([file.path(), shipped.path()]) {
        let path = path.display().to_string();
        world.kubectl(&["apply", "--dry-run=server", "--validate=strict", "-f", &path]).await.unwrap();
    }
}
