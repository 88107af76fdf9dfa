//! The address plan: pure arithmetic, the same in every lab, since each has a network of its own.

use std::net::Ipv4Addr;

/// The API server, and the gateway of the nodes' network.
pub const API: Ipv4Addr = Ipv4Addr::new(10, 10, 0, 1);
/// The API server's port.
pub const API_PORT: u16 = 6443;
/// The network of the nodes.
pub const NODE_PREFIX: u8 = 24;
/// All pods.
pub const POD_NETWORK: &str = "10.244.0.0/16";
/// All `ClusterIP`s.
pub const SERVICE_NETWORK: &str = "10.96.0.0/16";
/// The API server's own `ClusterIP`.
pub const SERVICE_API: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 1);
/// The `ClusterIP` of the cluster's DNS.
pub const SERVICE_DNS: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 10);
/// Largest number of nodes.
pub const MOST_NODES: u8 = 200;

/// The node's place in the plan: 1 for the first node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct Place(pub u8);

impl Place {
    /// The node's own address.
    pub fn node(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 10, 0, 10 + self.0)
    }

    /// The addresses of its pods.
    pub fn pods(self) -> String {
        format!("10.244.{}.0/24", self.0)
    }

    /// The lab's end of the cable to the node (at most 15 characters).
    pub fn cable(self) -> String {
        format!("node{}", self.0)
    }

    /// The name of the node's network namespace.
    pub fn netns(self) -> String {
        format!("node{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn node_addresses_are_unique(a in 1..=MOST_NODES, b in 1..=MOST_NODES) {
            prop_assert_ne!(Place(a).node(), API);
            prop_assert_eq!(a == b, Place(a).node() == Place(b).node());
            prop_assert_eq!(a == b, Place(a).pods() == Place(b).pods());
            prop_assert!(Place(a).cable().len() <= 15);
        }
    }
}
