//! The rules as one nftables table, replaced as a whole.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::rules::{Allow, Guard, Peers, Port};

const TABLE: &str = "ip lab-network-policies";

/// The text for `nft -f -`.
pub fn table(guards: &BTreeSet<Guard>) -> String {
    let mut chains = String::new();
    let (mut leaving, mut arriving) = (Vec::new(), Vec::new());
    for Guard { address, ingress, egress } in guards {
        let name = address.to_string().replace('.', "-");
        for (allowed, way, field, map) in
            [(egress, "from", "daddr", &mut leaving), (ingress, "to", "saddr", &mut arriving)]
        {
            if let Some(allowed) = allowed {
                chain(&mut chains, &format!("{way}-{name}"), allowed, field);
                map.push(format!("{address} : jump {way}-{name}"));
            }
        }
    }
    let map = |field: &str, entries: &[String]| match entries {
        [] => String::new(),
        some => format!("    ip {field} vmap {{ {} }}\n", some.join(", ")),
    };
    // after kube-proxy has replaced service addresses by pod addresses
    format!(
        "add table {TABLE}\ndelete table {TABLE}\ntable {TABLE} {{\n{chains}  chain forward {{\n    type filter hook forward priority filter + 1; policy accept;\n    ct state established,related accept\n{}{}  }}\n}}\n",
        map("saddr", &leaving),
        map("daddr", &arriving),
    )
}

/// Permitted packets continue, all others are dropped.
fn chain(text: &mut String, name: &str, allowed: &BTreeSet<Allow>, field: &str) {
    let _ = writeln!(text, "  chain {name} {{");
    for Allow { peers, port } in allowed {
        let peers = match peers {
            None => String::new(),
            Some(Peers::Pods(pods)) if pods.is_empty() => continue,
            Some(Peers::Pods(pods)) => {
                let all: Vec<String> = pods.iter().map(ToString::to_string).collect();
                format!("ip {field} {{ {} }} ", all.join(", "))
            }
            // IPv4 only
            Some(Peers::Block { cidr, .. }) if cidr.contains(':') => continue,
            Some(Peers::Block { cidr, except }) => {
                let except: Vec<String> = except.iter().map(|e| format!("ip {field} != {e} ")).collect();
                format!("ip {field} {cidr} {}", except.concat())
            }
        };
        let port = match port {
            None => String::new(),
            Some(Port { protocol, range: None }) => format!("meta l4proto {protocol} "),
            Some(Port { protocol, range: Some((first, last)) }) if first == last => {
                format!("{protocol} dport {first} ")
            }
            Some(Port { protocol, range: Some((first, last)) }) => format!("{protocol} dport {first}-{last} "),
        };
        let _ = writeln!(text, "    {peers}{port}return");
    }
    text.push_str("    drop\n  }\n");
}
