//! Evaluates network policies for the pods of one node; pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::networking::v1::{IPBlock, NetworkPolicy, NetworkPolicyPeer, NetworkPolicyPort};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt as _;
use kube::core::{Selector, SelectorExt as _};

type Labels = BTreeMap<String, String>;

/// Objects that policies refer to.
#[derive(Debug, Clone, Default)]
pub struct Cluster {
    /// Labels of the namespaces, by name.
    pub namespaces: BTreeMap<String, Labels>,
    /// All pods.
    pub pods: Vec<Pod>,
    /// All policies.
    pub policies: Vec<NetworkPolicy>,
}

/// Rules of one pod; `None`: everything is allowed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Guard {
    /// Its address.
    pub address: Ipv4Addr,
    /// Permitted ingress.
    pub ingress: Option<BTreeSet<Allow>>,
    /// Permitted egress.
    pub egress: Option<BTreeSet<Allow>>,
}

/// Packets that are allowed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Allow {
    /// The peer; `None`: any.
    pub peers: Option<Peers>,
    /// The destination port; `None`: all.
    pub port: Option<Port>,
}

/// The peer of a connection.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Peers {
    /// Pods, by address; there may be none.
    Pods(BTreeSet<Ipv4Addr>),
    /// A network without parts of it, in CIDR notation.
    Block {
        /// The network.
        cidr: String,
        /// The excluded parts.
        except: Vec<String>,
    },
}

/// Ports of a protocol.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Port {
    /// nftables' name: `tcp`, `udp`, `sctp`.
    pub protocol: String,
    /// First and last; none: all.
    pub range: Option<(u16, u16)>,
}

impl Cluster {
    /// The rules of a node's pods.
    pub fn guards(&self, node: &str) -> BTreeSet<Guard> {
        let here = self.pods.iter().filter(|p| p.spec.as_ref().is_some_and(|s| s.node_name.as_deref() == Some(node)));
        here.filter_map(|pod| self.guard(pod)).collect()
    }

    /// None for a pod that no policy selects.
    fn guard(&self, pod: &Pod) -> Option<Guard> {
        let address = address(pod)?;
        let (mut ingress, mut egress) = (None, None);
        for policy in self.policies.iter().filter(|p| p.namespace() == pod.namespace()) {
            let Some(spec) = policy.spec.as_ref() else { continue };
            if !selects(spec.pod_selector.as_ref(), pod.labels()) {
                continue;
            }
            let types = spec.policy_types.as_deref().unwrap_or_default();
            let says = |direction: &str| types.iter().any(|t| t == direction);
            if says("Ingress") || types.is_empty() {
                let allowed: &mut BTreeSet<Allow> = ingress.get_or_insert_default();
                for rule in spec.ingress.iter().flatten() {
                    let peers = self.peers(policy, rule.from.as_deref().unwrap_or_default());
                    allowed.extend(incoming(pod, &peers, rule.ports.as_deref().unwrap_or_default()));
                }
            }
            if says("Egress") || (types.is_empty() && spec.egress.is_some()) {
                let allowed: &mut BTreeSet<Allow> = egress.get_or_insert_default();
                for rule in spec.egress.iter().flatten() {
                    let peers = self.peers(policy, rule.to.as_deref().unwrap_or_default());
                    allowed.extend(outgoing(&peers, rule.ports.as_deref().unwrap_or_default()));
                }
            }
        }
        (ingress.is_some() || egress.is_some()).then_some(Guard { address, ingress, egress })
    }

    fn peers<'a>(&'a self, policy: &NetworkPolicy, peers: &[NetworkPolicyPeer]) -> Vec<Side<'a>> {
        if peers.is_empty() {
            return vec![Side::Anybody];
        }
        let home = policy.namespace().unwrap_or_default();
        let side = |peer: &NetworkPolicyPeer| match &peer.ip_block {
            Some(IPBlock { cidr, except }) => {
                Side::Block { cidr: cidr.clone(), except: except.clone().unwrap_or_default() }
            }
            None => Side::Pods(self.chosen(&home, peer)),
        };
        peers.iter().map(side).collect()
    }

    /// Pods that a peer selects; without a namespace selector in the policy's namespace.
    fn chosen(&self, home: &str, peer: &NetworkPolicyPeer) -> Vec<&Pod> {
        let of_namespace = |name: &str| match &peer.namespace_selector {
            None => name == home,
            some => self.namespaces.get(name).is_some_and(|labels| selects(some.as_ref(), labels)),
        };
        let chosen = |pod: &&Pod| {
            of_namespace(&pod.namespace().unwrap_or_default()) && selects(peer.pod_selector.as_ref(), pod.labels())
        };
        self.pods.iter().filter(chosen).collect()
    }
}

/// The peer before ports are resolved: a named port is resolved by the destination pod.
enum Side<'a> {
    Anybody,
    Pods(Vec<&'a Pod>),
    Block { cidr: String, except: Vec<String> },
}

impl Side<'_> {
    fn peers(&self) -> Option<Peers> {
        match self {
            Self::Anybody => None,
            Self::Pods(pods) => Some(Peers::Pods(pods.iter().filter_map(|p| address(p)).collect())),
            Self::Block { cidr, except } => Some(Peers::Block { cidr: cidr.clone(), except: except.clone() }),
        }
    }
}

fn incoming(called: &Pod, sides: &[Side<'_>], ports: &[NetworkPolicyPort]) -> Vec<Allow> {
    let mut allowed = Vec::new();
    for side in sides {
        if ports.is_empty() {
            allowed.push(Allow { peers: side.peers(), port: None });
        }
        let known = ports.iter().filter_map(|p| resolved(p, Some(called)));
        allowed.extend(known.map(|port| Allow { peers: side.peers(), port: Some(port) }));
    }
    allowed
}

fn outgoing(sides: &[Side<'_>], ports: &[NetworkPolicyPort]) -> Vec<Allow> {
    let mut allowed = Vec::new();
    for side in sides {
        if ports.is_empty() {
            allowed.push(Allow { peers: side.peers(), port: None });
        }
        for port in ports {
            if let Some(port) = resolved(port, None) {
                allowed.push(Allow { peers: side.peers(), port: Some(port) });
            } else if let Side::Pods(pods) = side {
                let one = |pod: &&Pod| {
                    let peers = Peers::Pods([address(pod)?].into());
                    Some(Allow { peers: Some(peers), port: Some(resolved(port, Some(pod))?) })
                };
                allowed.extend(pods.iter().filter_map(one));
            }
        }
    }
    allowed
}

/// A port by number; a named port if the destination pod has it.
fn resolved(port: &NetworkPolicyPort, called: Option<&Pod>) -> Option<Port> {
    let protocol = port.protocol.clone().unwrap_or_else(|| "TCP".into());
    let number = |n: i32| u16::try_from(n).ok();
    let range = match &port.port {
        None => None,
        Some(IntOrString::Int(first)) => Some((number(*first)?, number(port.end_port.unwrap_or(*first))?)),
        Some(IntOrString::String(name)) => {
            let containers = called?.spec.iter().flat_map(|s| &s.containers);
            let mut ports = containers.flat_map(|c| c.ports.iter().flatten());
            let is = |p: &&k8s_openapi::api::core::v1::ContainerPort| {
                p.name.as_ref() == Some(name) && p.protocol.as_deref().unwrap_or("TCP") == protocol
            };
            let at = number(ports.find(is)?.container_port)?;
            Some((at, at))
        }
    };
    Some(Port { protocol: protocol.to_lowercase(), range })
}

/// An absent selector selects everything; an invalid one nothing.
fn selects(selector: Option<&LabelSelector>, labels: &Labels) -> bool {
    selector.is_none_or(|s| Selector::try_from(s.clone()).is_ok_and(|s| s.matches(labels)))
}

/// The address of a pod that has one and has not ended.
fn address(pod: &Pod) -> Option<Ipv4Addr> {
    let (spec, status) = (pod.spec.as_ref()?, pod.status.as_ref()?);
    let over = matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"));
    if over || spec.host_network == Some(true) {
        return None;
    }
    status.pod_ip.as_ref()?.parse().ok()
}

#[cfg(test)]
mod tests;
