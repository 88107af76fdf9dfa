//! The configuration files of the nodes' programs.

use crate::address::{POD_NETWORK, Place, SERVICE_DNS};
use crate::place::SHARE;
use std::net::Ipv4Addr;
use std::path::Path;

fn fill(template: &str, values: &[(&str, &str)]) -> String {
    values.iter().fold(template.to_owned(), |text, (name, value)| text.replace(name, value))
}

/// The kubelet's configuration.
pub fn kubelet(place: Place) -> String {
    let (ip, dns) = (place.node().to_string(), SERVICE_DNS.to_string());
    fill(include_str!("conf/kubelet.yaml"), &[("@IP@", &ip), ("@SHARE@", SHARE), ("@DNS@", &dns)])
}

/// containerd's configuration.
pub fn containerd(toolset: &Path) -> String {
    let (bin, cni) = (toolset.join("bin"), toolset.join("cni"));
    fill(
        include_str!("conf/containerd.toml"),
        &[("@BIN@", &bin.display().to_string()), ("@CNI@", &cni.display().to_string())],
    )
}

/// The pod network's configuration.
pub fn cni(place: Place) -> String {
    fill(include_str!("conf/10-lab.conflist"), &[("@PODS@", &place.pods())])
}

/// kube-proxy's configuration.
pub fn kube_proxy(address: Ipv4Addr, kubeconfig: &Path) -> String {
    let (ip, kubeconfig) = (address.to_string(), kubeconfig.display().to_string());
    fill(include_str!("conf/kube-proxy.yaml"), &[("@IP@", &ip), ("@PODS@", POD_NETWORK), ("@KUBECONFIG@", &kubeconfig)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rendered_files_of_a_node_match_snapshots() {
        let place = Place(1);
        insta::assert_snapshot!("kubelet", kubelet(place));
        insta::assert_snapshot!("containerd", containerd(Path::new("/toolset")));
        insta::assert_snapshot!("cni", cni(place));
        insta::assert_snapshot!("kube_proxy", kube_proxy(place.node(), Path::new("/run/lab/pki/proxy.kubeconfig")));
        for text in [kubelet(place), containerd(Path::new("/t")), cni(place), kube_proxy(place.node(), Path::new("/k"))]
        {
            assert!(!text.contains('@'), "a value is missing in\n{text}");
        }
    }
}
