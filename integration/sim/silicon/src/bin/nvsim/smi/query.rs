//! `--query-gpu` and `--query-compute-apps`: fields as comma-separated values.

use super::gpu::{Gpu, Memory, Process};

/// What NVML does not show.
const UNKNOWN: &str = "[N/A]";

/// Why a query is refused.
#[derive(Debug, thiserror::Error)]
pub enum QueryError {
    #[error("\"--format=\" must begin with csv")]
    NoCsv,
    #[error("\"{0}\" is not a format")]
    Format(String),
    #[error("Field \"{0}\" is not a valid field to query.")]
    Field(String),
}

/// How values are printed.
pub struct Format {
    header: bool,
    units: bool,
}

impl Format {
    /// From `csv[,noheader][,nounits]`.
    pub fn parse(text: Option<&str>) -> Result<Self, QueryError> {
        let mut format = Self { header: true, units: true };
        let mut words = text.unwrap_or_default().split(',').map(str::trim);
        if words.next() != Some("csv") {
            return Err(QueryError::NoCsv);
        }
        for word in words {
            match word {
                "noheader" => format.header = false,
                "nounits" => format.units = false,
                _ => return Err(QueryError::Format(word.to_owned())),
            }
        }
        Ok(format)
    }

    /// A value with its unit.
    fn value(&self, value: &str, unit: &str) -> String {
        if unit.is_empty() || !self.units || value == UNKNOWN { value.to_owned() } else { format!("{value} {unit}") }
    }
}

/// A field: its name in the header, its unit, and its value.
type Field<T> = (&'static str, &'static str, fn(&T) -> String);

/// A reading, if NVML shows it.
fn shown(value: Option<impl ToString>) -> String {
    value.map_or(UNKNOWN.to_owned(), |value| value.to_string())
}

fn switch(on: Option<bool>) -> String {
    shown(on.map(|on| if on { "Enabled" } else { "Disabled" }))
}

/// Watts of so many milliwatts.
fn watts(milliwatts: Option<u32>) -> String {
    shown(milliwatts.map(|power| format!("{}.{:02}", power / 1000, power % 1000 / 10)))
}

/// Fields of a GPU.
fn of_gpu(name: &str) -> Option<Field<Gpu>> {
    fn memory(gpu: &Gpu, value: fn(&Memory) -> u64) -> String {
        gpu.memory.as_ref().map_or(UNKNOWN.to_owned(), |memory| value(memory).to_string())
    }
    Some(match name {
        "index" => ("index", "", |gpu| gpu.index.to_string()),
        "name" | "gpu_name" => ("name", "", |gpu| gpu.name.clone()),
        "uuid" | "gpu_uuid" => ("uuid", "", |gpu| gpu.uuid.clone()),
        "memory.total" => ("memory.total", "MiB", |gpu| memory(gpu, |m| m.total)),
        "memory.used" => ("memory.used", "MiB", |gpu| memory(gpu, |m| m.used)),
        "memory.free" => ("memory.free", "MiB", |gpu| memory(gpu, |m| m.free)),
        _ => return of_readings(name),
    })
}

/// Fields of a GPU's readings.
fn of_readings(name: &str) -> Option<Field<Gpu>> {
    Some(match name {
        "serial" | "gpu_serial" => ("serial", "", |gpu| shown(gpu.readings.serial.as_ref())),
        "pci.bus_id" | "gpu_bus_id" => ("pci.bus_id", "", |gpu| shown(gpu.readings.address.as_ref())),
        "compute_cap" => ("compute_cap", "", |gpu| shown(gpu.readings.capability.as_ref())),
        "utilization.gpu" => ("utilization.gpu", "%", |gpu| shown(gpu.readings.utilization.map(|(gpu, _)| gpu))),
        "utilization.memory" => {
            ("utilization.memory", "%", |gpu| shown(gpu.readings.utilization.map(|(_, memory)| memory)))
        }
        "power.draw" => ("power.draw", "W", |gpu| watts(gpu.readings.power)),
        "power.limit" => ("power.limit", "W", |gpu| watts(gpu.readings.power_limit)),
        "temperature.gpu" => ("temperature.gpu", "", |gpu| shown(gpu.readings.temperature)),
        "compute_mode" => ("compute_mode", "", |gpu| shown(gpu.readings.compute_mode)),
        "persistence_mode" => ("persistence_mode", "", |gpu| switch(gpu.readings.persistence)),
        "accounting.mode" => ("accounting.mode", "", |gpu| switch(gpu.readings.accounting)),
        "mig.mode.current" => ("mig.mode.current", "", |gpu| switch(gpu.readings.mig.map(|(current, _)| current))),
        "mig.mode.pending" => ("mig.mode.pending", "", |gpu| switch(gpu.readings.mig.map(|(_, pending)| pending))),
        "ecc.errors.uncorrected.volatile.total" => {
            ("ecc.errors.uncorrected.volatile.total", "", |gpu| shown(gpu.readings.ecc_errors))
        }
        _ => return None,
    })
}

/// Fields of a process, with its GPU.
fn of_process<'g>(name: &str) -> Option<Field<(&'g Gpu, &'g Process)>> {
    Some(match name {
        "pid" => ("pid", "", |(_, process)| process.pid.to_string()),
        "name" | "process_name" => ("process_name", "", |(_, process)| process.name.clone()),
        "gpu_uuid" => ("gpu_uuid", "", |(gpu, _)| gpu.uuid.clone()),
        "gpu_name" => ("gpu_name", "", |(gpu, _)| gpu.name.clone()),
        "gpu_bus_id" => ("gpu_bus_id", "", |(gpu, _)| shown(gpu.readings.address.as_ref())),
        "gpu_serial" => ("gpu_serial", "", |(gpu, _)| shown(gpu.readings.serial.as_ref())),
        "used_memory" | "used_gpu_memory" => {
            ("used_gpu_memory", "MiB", |(_, process)| process.memory.map_or(UNKNOWN.to_owned(), |mib| mib.to_string()))
        }
        _ => return None,
    })
}

/// A line for each GPU.
pub fn gpus(gpus: &[Gpu], names: &str, format: &Format) -> Result<String, QueryError> {
    let fields = fields(names, of_gpu)?;
    Ok(lines(gpus, &fields, format))
}

/// A line for each process.
pub fn processes(gpus: &[Gpu], names: &str, format: &Format) -> Result<String, QueryError> {
    let all: Vec<(&Gpu, &Process)> = gpus.iter().flat_map(|gpu| gpu.processes.iter().map(move |p| (gpu, p))).collect();
    let fields = fields(names, of_process)?;
    Ok(lines(&all, &fields, format))
}

fn fields<T>(names: &str, known: fn(&str) -> Option<Field<T>>) -> Result<Vec<Field<T>>, QueryError> {
    names.split(',').map(str::trim).map(|name| known(name).ok_or_else(|| QueryError::Field(name.to_owned()))).collect()
}

fn lines<T>(rows: &[T], fields: &[Field<T>], format: &Format) -> String {
    let names = fields.iter().map(|(name, unit, _)| {
        if unit.is_empty() || !format.units { (*name).to_owned() } else { format!("{name} [{unit}]") }
    });
    let header = format.header.then(|| names.collect::<Vec<_>>());
    let row = |row: &T| fields.iter().map(|(_, unit, value)| format.value(&value(row), unit)).collect::<Vec<_>>();
    let all = header.into_iter().chain(rows.iter().map(row));
    all.map(|values| values.join(", ") + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::super::gpu::Readings;
    use super::*;

    fn gpu() -> Gpu {
        Gpu {
            index: 0,
            name: "H".to_owned(),
            uuid: "GPU-1".to_owned(),
            memory: Some(Memory { total: 80, used: 10, free: 70 }),
            readings: Readings { power: Some(62_050), mig: Some((false, true)), ..Readings::default() },
            instances: Vec::new(),
            processes: vec![Process { pid: 7, name: "work".to_owned(), memory: Some(3), instance: None }],
        }
    }

    #[test]
    fn fields_are_printed_with_header_and_units_as_the_format_says() {
        let query = |format: &str| {
            let format = Format::parse(Some(format)).unwrap();
            gpus(&[gpu()], "name, uuid,memory.used,utilization.gpu", &format).unwrap()
        };
        assert_eq!(query("csv"), "name, uuid, memory.used [MiB], utilization.gpu [%]\nH, GPU-1, 10 MiB, [N/A]\n");
        assert_eq!(query("csv,noheader,nounits"), "H, GPU-1, 10, [N/A]\n");
        let format = Format::parse(Some("csv")).unwrap();
        let modes = gpus(&[gpu()], "power.draw,mig.mode.pending,accounting.mode", &format).unwrap();
        assert_eq!(modes, "power.draw [W], mig.mode.pending, accounting.mode\n62.05 W, Enabled, [N/A]\n");
        let apps = processes(&[gpu()], "pid,used_memory", &format).unwrap();
        assert_eq!(apps, "pid, used_gpu_memory [MiB]\n7, 3 MiB\n");
    }

    #[test]
    fn unknown_fields_and_formats_are_refused() {
        let format = Format::parse(Some("csv")).unwrap();
        assert!(gpus(&[gpu()], "nothing", &format).is_err() && processes(&[gpu()], "nothing", &format).is_err());
        assert!(Format::parse(None).is_err() && Format::parse(Some("csv,other")).is_err());
    }
}
