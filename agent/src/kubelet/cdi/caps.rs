//! Minor numbers of the capability nodes that open a MIG instance to a container.

use std::collections::BTreeMap;

use crate::device::MigIds;

/// The driver's table `/proc/driver/nvidia-caps/mig-minors`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CapMinors(BTreeMap<String, u32>);

impl CapMinors {
    /// From the table's text: lines such as `gpu0/gi9/ci0/access 85`.
    pub fn parse(table: &str) -> Self {
        let line = |line: &str| {
            let (name, minor) = line.trim().rsplit_once(' ')?;
            Some((name.trim().to_owned(), minor.parse().ok()?))
        };
        Self(table.lines().filter_map(line).collect())
    }

    /// The nodes of an instance: its GPU instance's, then its compute instance's.
    pub fn of(&self, gpu_minor: u32, mig: &MigIds) -> [u32; 2] {
        // the driver's numbering, for hosts that hide the table
        let gi_rule = 3 + 135 * gpu_minor + 9 * mig.gi;
        let gi = self.0.get(&format!("gpu{gpu_minor}/gi{}/access", mig.gi)).copied().unwrap_or(gi_rule);
        let ci = self.0.get(&format!("gpu{gpu_minor}/gi{}/ci{}/access", mig.gi, mig.ci)).copied();
        [gi, ci.unwrap_or(gi_rule + 1 + mig.ci)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(gi: u32, ci: u32) -> MigIds {
        MigIds { gi, ci, start: 0, profile: "1g.10gb".to_owned() }
    }

    #[test]
    fn reads_the_drivers_table() {
        let table = CapMinors::parse("config 1\nmonitor 2\ngpu0/gi9/access 400\ngpu0/gi9/ci0/access 401\n");
        assert_eq!(table.of(0, &ids(9, 0)), [400, 401]);
    }

    #[test]
    fn follows_the_drivers_rule_where_the_table_is_hidden() {
        assert_eq!(CapMinors::default().of(0, &ids(9, 0)), [84, 85]);
        assert_eq!(CapMinors::default().of(1, &ids(1, 2)), [147, 150]);
    }
}
