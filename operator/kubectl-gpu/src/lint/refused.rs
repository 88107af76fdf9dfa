//! What the API server accepts and the operator refuses, or what no node can have: windows that never open, MIG instances and memory that no
//! board has, and labels that no node has. Read from the manifests themselves, so that another mistake of an object hides none of these.

use gputenancy_crds::{DurationText, MaintenanceWindow, quantity::Amount};
use gputenancy_decisions::change::Windows;
use k8s_openapi::{apimachinery::pkg::api::resource::Quantity, jiff::Timestamp};
use serde_json::Value;

use crate::input::{Finding, Located, token};

/// Names of the MIG profiles of all boards up to the driver branch 595, in NVIDIA's MIG User Guide and NVML.
const MIG_PROFILES: &[&str] = &[
    "1g.10gb", "1g.12gb", "1g.16gb", "1g.18gb", "1g.20gb", "1g.23gb", "1g.24gb", "1g.34gb", "1g.35gb", "1g.36gb",
    "1g.45gb", "1g.47gb", "1g.5gb", "1g.67gb", "1g.6gb", "1g.70gb", "1g.8gb", "2g.10gb", "2g.12gb", "2g.16gb",
    "2g.20gb", "2g.24gb", "2g.32gb", "2g.35gb", "2g.36gb", "2g.45gb", "2g.47gb", "2g.48gb", "2g.67gb", "2g.70gb",
    "3g.135gb", "3g.139gb", "3g.20gb", "3g.32gb", "3g.39gb", "3g.40gb", "3g.47gb", "3g.48gb", "3g.71gb", "3g.72gb",
    "3g.90gb", "3g.93gb", "3g.95gb", "4g.135gb", "4g.139gb", "4g.20gb", "4g.24gb", "4g.32gb", "4g.40gb", "4g.47gb",
    "4g.48gb", "4g.71gb", "4g.72gb", "4g.90gb", "4g.93gb", "4g.95gb", "4g.96gb", "7g.141gb", "7g.144gb", "7g.180gb",
    "7g.186gb", "7g.189gb", "7g.269gb", "7g.278gb", "7g.40gb", "7g.64gb", "7g.79gb", "7g.80gb", "7g.94gb", "7g.96gb",
];

/// Fields with an amount of memory or storage.
const BYTES: [&str; 5] = [
    "/spec/device/fraction/memory",
    "/spec/device/mig/memory",
    "/spec/device/timeSlice/of/mig/memory",
    "/spec/device/mps/memory",
    "/spec/virtualCluster/storage/size",
];
/// An amount of fewer bytes was written without its unit.
const LEAST_BYTES: i128 = 1 << 20;

/// A pointer and a message.
type Mistake = (String, String);

/// All such mistakes in these objects.
pub(super) fn refused(written: &[Located]) -> Vec<Finding> {
    let of = |object: &Located| -> Vec<Mistake> {
        match object.text("/kind") {
            Some("GpuPool") => windows(&object.value).into_iter().chain(labels(&object.value)).collect(),
            Some("GpuProfile") => mig(&object.value).into_iter().chain(bytes(&object.value)).collect(),
            _ => bytes(&object.value),
        }
    };
    let mistakes = written.iter().flat_map(|object| of(object).into_iter().map(move |mistake| (object, mistake)));
    mistakes.map(|(object, (pointer, message))| object.finding(&pointer, message)).collect()
}

/// Schedule and time zone of each window are tried alone, so that each has its own finding.
fn windows(pool: &Value) -> Vec<Mistake> {
    let text = |window: &Value, field: &str| window.get(field).and_then(Value::as_str).map(str::to_owned);
    let tried = |index: usize, schedule: String, zone: Option<String>| {
        let field = if zone.is_some() { "timeZone" } else { "schedule" };
        let window = MaintenanceWindow {
            schedule,
            duration: DurationText::parse("1h").ok()?,
            time_zone: zone.unwrap_or_else(|| "UTC".to_owned()),
        };
        let error = Windows::read(&[window], Timestamp::UNIX_EPOCH).err()?.to_string();
        // of a list with this one window
        let (_, message) = error.split_once(": ")?;
        Some((format!("/spec/disruption/windows/{index}/{field}"), message.to_owned()))
    };
    let all = pool.pointer("/spec/disruption/windows").and_then(Value::as_array).into_iter().flatten().enumerate();
    let found = all.flat_map(|(index, window)| {
        let schedule = text(window, "schedule").and_then(|schedule| tried(index, schedule, None));
        let zone = text(window, "timeZone").and_then(|zone| tried(index, "0 2 * * 6".to_owned(), Some(zone)));
        [schedule, zone].into_iter().flatten()
    });
    found.collect()
}

/// Labels that no node can have, which the API server of custom resources does not check.
fn labels(pool: &Value) -> Vec<Mistake> {
    let selector = "/spec/nodeSelector";
    let labels = pool.pointer(&format!("{selector}/matchLabels")).and_then(Value::as_object).into_iter().flatten();
    let labels = labels.flat_map(|(key, value)| {
        let pointer = format!("{selector}/matchLabels/{}", token(key));
        let value = value.as_str().and_then(wrong_value);
        [wrong_key(key), value].into_iter().flatten().map(move |message| (pointer.clone(), message))
    });
    let expressions = pool.pointer(&format!("{selector}/matchExpressions")).and_then(Value::as_array);
    let expressions = expressions.into_iter().flatten().enumerate().flat_map(|(index, expression)| {
        let pointer = format!("{selector}/matchExpressions/{index}");
        let key = expression.get("key").and_then(Value::as_str).and_then(wrong_key);
        let values = expression.get("values").and_then(Value::as_array).into_iter().flatten();
        let value = values.filter_map(Value::as_str).find_map(wrong_value);
        let key = key.map(|message| (format!("{pointer}/key"), message));
        [key, value.map(|message| (format!("{pointer}/values"), message))].into_iter().flatten()
    });
    labels.chain(expressions).collect()
}

fn wrong_key(key: &str) -> Option<String> {
    let (prefix, name) = key.rsplit_once('/').map_or((None, key), |(prefix, name)| (Some(prefix), name));
    let domain = |domain: &str| {
        let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
        (1..=253).contains(&domain.len()) && domain.chars().all(inner)
    };
    let fits = !name.is_empty() && is_label_text(name) && prefix.is_none_or(domain);
    (!fits).then(|| format!("no node has a label \"{key}\": write a key of letters, digits, dashes, underscores and dots, such as example.com/gpus"))
}

fn wrong_value(value: &str) -> Option<String> {
    (!is_label_text(value)).then(|| {
        format!("no node has a label with the value \"{value}\": write at most 63 letters, digits, dashes, underscores and dots")
    })
}

/// A value of a label, or a key without its prefix: Kubernetes' `IsValidLabelValue`.
fn is_label_text(text: &str) -> bool {
    let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let end = |c: char| c.is_ascii_alphanumeric();
    text.is_empty() || text.len() <= 63 && text.chars().all(inner) && text.starts_with(end) && text.ends_with(end)
}

/// Instances that no board has.
fn mig(profile: &Value) -> Vec<Mistake> {
    let devices = ["/spec/device/mig", "/spec/device/timeSlice/of/mig"];
    let found = devices.into_iter().filter_map(|pointer| Some((pointer, profile.pointer(pointer)?)));
    let found = found.flat_map(|(pointer, mig)| {
        let name = mig.get("profile").and_then(Value::as_str).filter(|name| !is_known(name));
        let name = name.map(|name| (format!("{pointer}/profile"), unknown(name)));
        let slices = mig.get("slices").and_then(Value::as_u64).filter(|slices| *slices > most_slices());
        let slices = slices.map(|slices| {
            let most = most_slices();
            (format!("{pointer}/slices"), format!("no board has {slices} compute slices: write {most} or less"))
        });
        let memory = mig.get("memory").and_then(amount).filter(|bytes| *bytes > i128::from(most_memory()) << 30);
        let memory = memory.map(|_| {
            let most = most_memory();
            (
                format!("{pointer}/memory"),
                format!(
                    "no board that is known to this version has an instance with so much memory: write {most}Gi or less"
                ),
            )
        });
        [name, slices, memory].into_iter().flatten()
    });
    found.collect()
}

/// Amounts without a unit.
fn bytes(object: &Value) -> Vec<Mistake> {
    let found = BYTES.into_iter().filter_map(|pointer| {
        let value = object.pointer(pointer)?;
        let bytes = amount(value).filter(|bytes| (1..LEAST_BYTES).contains(bytes))?;
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        Some((pointer.to_owned(), format!("{text} is {bytes} bytes: write a unit, such as {text}Gi")))
    });
    found.collect()
}

/// A quantity in bytes, rounded down.
fn amount(value: &Value) -> Option<i128> {
    let text = value.as_str().map(str::to_owned).or_else(|| value.as_u64().map(|n| n.to_string()))?;
    Amount::parse(&Quantity(text)).map(|amount| amount.milli() / 1000)
}

/// Compute slices and GB of a profile, as its name says.
fn size(name: &str) -> Option<(u64, u64)> {
    let (slices, memory) = name.split_once('.')?;
    Some((slices.strip_suffix('g')?.parse().ok()?, memory.strip_suffix("gb")?.parse().ok()?))
}

fn most_slices() -> u64 {
    MIG_PROFILES.iter().filter_map(|name| size(name)).map(|(slices, _)| slices).max().unwrap_or_default()
}

/// A profile has no more GiB than its name says GB.
fn most_memory() -> u64 {
    MIG_PROFILES.iter().filter_map(|name| size(name)).map(|(_, memory)| memory).max().unwrap_or_default()
}

/// Whether a board has it, without regard to attributes such as `+me`.
fn is_known(name: &str) -> bool {
    MIG_PROFILES.contains(&name.split(['+', '-']).next().unwrap_or_default())
}

fn unknown(name: &str) -> String {
    let slices = name.split('.').next().unwrap_or_default();
    let same = MIG_PROFILES.iter().filter(|known| known.starts_with(&format!("{slices}."))).copied();
    let same = same.collect::<Vec<_>>().join(", ");
    let same = if same.is_empty() { same } else { format!("one of {same}; or ") };
    format!(
        "no board that is known to this version has {name}: write {same}slices and memory instead of a name, which also fits newer boards"
    )
}
