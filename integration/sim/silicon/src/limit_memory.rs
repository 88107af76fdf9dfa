//! Setting and reading the memory limits of cgroups. Pure, but for cgroups that were removed: their limits end with them.

use std::path::Path;

use crate::cgroup;
use crate::clients::Client;
use crate::code::Code;
use crate::machine::Machine;
use crate::memory_limits::{MemoryLimit, NO_LIMIT, used};

impl Machine {
    /// Sets the limits of a cgroup; soft 0 and hard [`NO_LIMIT`] clear them.
    pub fn set_memory_limit(&mut self, gpu: u32, cgroup: &str, soft: u64, hard: u64) -> Result<(), Code> {
        if !self.memory_limits.supported {
            return Err(Code::NOT_SUPPORTED);
        }
        let total = self.gpu(gpu)?.board.memory_mib << 20;
        let id = folder(cgroup)?;
        if soft > hard || soft > total || (hard > total && hard != NO_LIMIT) {
            return Err(Code::INVALID_ARGUMENT);
        }
        self.memory_limits.set.retain(|limit| exists(limit) && (limit.gpu, limit.id) != (gpu, id));
        if (soft, hard) != (0, NO_LIMIT) {
            self.memory_limits.set.push(MemoryLimit { gpu, cgroup: cgroup.to_owned(), id, soft, hard });
        }
        Ok(())
    }

    /// The limit of a cgroup.
    pub fn memory_limit(&self, gpu: u32, cgroup: &str) -> Result<&MemoryLimit, Code> {
        if !self.memory_limits.supported {
            return Err(Code::NOT_SUPPORTED);
        }
        self.gpu(gpu)?;
        let id = folder(cgroup)?;
        self.memory_limits.set.iter().find(|limit| (limit.gpu, limit.id) == (gpu, id)).ok_or(Code::NOT_FOUND)
    }

    /// Bytes that a client on a whole GPU may have at most next to these others, by the limits of its cgroup and those above.
    pub fn limited(&self, client: &Client, others: &[Client]) -> Option<u64> {
        if client.instance.is_some() {
            return None;
        }
        let of_client = |limit: &&MemoryLimit| limit.gpu == client.gpu && client.cgroups.contains(&limit.id);
        let limits = self.memory_limits.set.iter().filter(of_client);
        limits.map(|limit| limit.hard.saturating_sub(used(limit, others))).min()
    }
}

/// Id of the cgroup with this full path in sysfs, which may be mounted below the root of the host.
fn folder(path: &str) -> Result<u64, Code> {
    cgroup::id(Path::new(path)).filter(|_| path.contains(cgroup::ROOT)).ok_or(Code::INVALID_ARGUMENT)
}

fn exists(limit: &MemoryLimit) -> bool {
    cgroup::id(Path::new(&limit.cgroup)) == Some(limit.id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Variant, boards};

    const GIB: u64 = 1 << 30;

    fn machine() -> Machine {
        let mut machine = Machine::power_on("n", boards::load("a100-80gb").unwrap(), Variant::Normal, 2, &[]);
        machine.memory_limits.supported = true;
        machine
    }

    fn client(gpu: u32, memory: u64, cgroups: &[u64]) -> Client {
        let (name, owner) = (String::new(), String::new());
        Client { pid: 1, gpu, instance: None, memory, name, owner, cgroups: cgroups.to_vec() }
    }

    #[test]
    fn limits_are_checked_and_cleared_as_the_header_says() {
        let (mut machine, root) = (machine(), cgroup::hierarchy().display().to_string());
        assert_eq!(machine.memory_limit(0, &root), Err(Code::NOT_FOUND));
        assert_eq!(machine.set_memory_limit(0, &root, 2, 1), Err(Code::INVALID_ARGUMENT));
        assert_eq!(machine.set_memory_limit(0, &root, 0, 81 * GIB), Err(Code::INVALID_ARGUMENT));
        assert_eq!(machine.set_memory_limit(0, "/tmp", 0, GIB), Err(Code::INVALID_ARGUMENT));
        machine.set_memory_limit(0, &root, GIB, 2 * GIB).unwrap();
        machine.set_memory_limit(0, &root, 0, 3 * GIB).unwrap();
        let limit = machine.memory_limit(0, &root).unwrap();
        assert_eq!((limit.soft, limit.hard, machine.memory_limits.set.len()), (0, 3 * GIB, 1));
        assert_eq!(machine.memory_limit(1, &root), Err(Code::NOT_FOUND));
        machine.set_memory_limit(0, &root, 0, NO_LIMIT).unwrap();
        assert_eq!(machine.memory_limit(0, &root), Err(Code::NOT_FOUND));
        machine.memory_limits.supported = false;
        assert_eq!(machine.set_memory_limit(0, &root, 0, GIB), Err(Code::NOT_SUPPORTED));
        assert_eq!(machine.memory_limit(0, &root), Err(Code::NOT_SUPPORTED));
    }

    #[test]
    fn limit_of_a_removed_cgroup_ends_with_it() {
        let mut machine = machine();
        let gone = MemoryLimit { gpu: 0, cgroup: "/sys/fs/cgroup/gone".into(), id: 7, soft: 0, hard: GIB };
        machine.memory_limits.set.push(gone);
        machine.set_memory_limit(0, &cgroup::hierarchy().display().to_string(), 0, GIB).unwrap();
        assert_eq!(machine.memory_limits.set.len(), 1);
    }

    #[test]
    fn processes_below_a_cgroup_count_together_and_the_tightest_limit_holds() {
        let mut machine = machine();
        let limit = |id, hard| MemoryLimit { gpu: 0, cgroup: String::new(), id, soft: 0, hard };
        machine.memory_limits.set = vec![limit(10, 4 * GIB), limit(1, 20 * GIB)];
        let others = [client(0, 3 * GIB, &[11, 10, 1]), client(0, GIB, &[20, 1]), client(1, GIB, &[10, 1])];
        let may = |client: &Client| machine.limited(client, &others);
        assert_eq!(may(&client(0, 0, &[12, 10, 1])), Some(GIB));
        assert_eq!(may(&client(0, 0, &[20, 1])), Some(16 * GIB));
        assert_eq!(may(&client(0, 0, &[30])), None);
        assert_eq!(may(&client(1, 0, &[10, 1])), None, "a limit is of one GPU");
        assert_eq!(may(&Client { instance: Some((1, 0)), ..client(0, 0, &[10]) }), None);
    }
}
