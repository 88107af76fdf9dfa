//! Faults that tests inject into calls of NVML and CUDA.

use serde::{Deserialize, Serialize};

/// Name of the file of faults in the state folder.
pub const FILE: &str = "faults.json";
/// Name of the file that, when it exists, gets a line for each NVML call.
pub const TRACE: &str = "calls.log";

/// A fault and the number of matching calls.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// Which calls: a name, `change` for those that change a GPU, or `any`.
    pub call: String,
    /// Only calls on this GPU.
    pub gpu: Option<u32>,
    /// Only calls by processes with this name prefix.
    pub process: Option<String>,
    /// The first call that is hit, counted from 1.
    pub nth: u32,
    /// How many calls are hit from then on; none for all.
    pub times: Option<u32>,
    /// The effect.
    pub effect: Effect,
    /// Matching calls so far.
    pub seen: u32,
}

/// The effect on a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Effect {
    /// It returns this code and does nothing.
    Fail(u32),
    /// It takes this many milliseconds longer.
    Hang(u64),
    /// The calling process is killed before the call does anything.
    KillBefore,
    /// The calling process is killed when the call has done its work, before it returns.
    KillAfter,
}

/// A call, for matching.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// The name of the function, as NVML or CUDA has it.
    pub name: &'a str,
    /// Whether it changes a GPU; no call of CUDA does.
    pub changes: bool,
    /// On which GPU, if on any.
    pub gpu: Option<u32>,
    /// Name of the calling process.
    pub process: &'a str,
}

impl Fault {
    fn matches(&self, call: &Call<'_>) -> bool {
        let name = match self.call.as_str() {
            "any" => true,
            "change" => call.changes,
            name => name == call.name,
        };
        name && self.gpu.is_none_or(|gpu| call.gpu == Some(gpu))
            && self.process.as_ref().is_none_or(|p| call.process.starts_with(p.as_str()))
    }

    fn due(&self) -> bool {
        self.seen >= self.nth && self.times.is_none_or(|times| self.seen < self.nth.saturating_add(times))
    }
}

/// Whether any fault matches this call, so that counts have to be written.
pub fn concerned(faults: &[Fault], call: &Call<'_>) -> bool {
    faults.iter().any(|f| f.matches(call))
}

/// Counts the call and returns the effect of the first fault that is due.
pub fn meet(faults: &mut [Fault], call: &Call<'_>) -> Option<Effect> {
    let mut effect = None;
    for fault in faults.iter_mut().filter(|f| f.matches(call)) {
        fault.seen += 1;
        if effect.is_none() && fault.due() {
            effect = Some(fault.effect);
        }
    }
    effect
}
