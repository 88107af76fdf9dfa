//! Contents of each image: one table for the lab's images; a test compares the Dockerfiles with it.

/// Where a file's content comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// A program or library that cargo built: `target/PROFILE/…`.
    Cargo(&'static str),
    /// A program of the toolset.
    Tool(&'static str),
    /// A packed chart of the toolset.
    Chart(&'static str),
    /// A program of the host's distribution.
    Host(&'static str),
    /// The sandbox's program, compiled from `pause.c`.
    Pause,
    /// The text itself.
    Text(&'static str),
    /// A symbolic link to this target.
    Link(&'static str),
    /// A folder with these permissions.
    Folder(u32),
}

/// One image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// Its name and tag.
    pub name: &'static str,
    /// Path in the image, and its content. Libraries that programs need are added to it.
    pub files: Vec<(&'static str, Source)>,
    /// Entrypoint.
    pub entrypoint: &'static [&'static str],
    /// Include libraries of the host that a driver library opens at run time.
    pub driver_libraries: bool,
    /// All applets of busybox as links, else only `sh`.
    pub applets: bool,
    /// The Dockerfile that users build it with.
    pub dockerfile: Option<&'static str>,
}

const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nnonroot:x:65532:65532:nonroot:/tmp:/bin/sh\n";
const GROUP: &str = "root:x:0:\nnonroot:x:65532:\n";
const NSSWITCH: &str = "hosts: files dns\npasswd: files\ngroup: files\n";

/// Files of every image except the sandbox's.
fn base() -> Vec<(&'static str, Source)> {
    vec![
        ("/bin/busybox", Source::Host("busybox")),
        ("/bin/sh", Source::Link("busybox")),
        ("/etc/passwd", Source::Text(PASSWD)),
        ("/etc/group", Source::Text(GROUP)),
        ("/etc/nsswitch.conf", Source::Text(NSSWITCH)),
        ("/tmp", Source::Folder(0o1777)),
        ("/root", Source::Folder(0o700)),
        ("/var", Source::Folder(0o755)),
        ("/run", Source::Folder(0o755)),
    ]
}

fn image(name: &'static str, files: &[(&'static str, Source)], entrypoint: &'static [&'static str]) -> Layout {
    let files = base().into_iter().chain(files.iter().copied()).collect();
    Layout { name, files, entrypoint, driver_libraries: false, applets: false, dockerfile: None }
}

/// All images of a lab, in the order of import.
pub fn all() -> Vec<Layout> {
    vec![
        Layout { files: vec![("/pause", Source::Pause)], ..image("lab.local/pause:1", &[], &["/pause"]) },
        Layout { applets: true, ..image("lab.local/busybox:1", &[], &["/bin/sh"]) },
        image("lab.local/coredns:1", &[("/coredns", Source::Tool("coredns"))], &["/coredns"]),
        Layout {
            dockerfile: Some("operator/controller/Dockerfile"),
            ..image(
                "lab.local/gputenancy-operator:dev",
                &[("/usr/bin/gputenancy-operator", Source::Cargo("gputenancy-operator"))],
                &["/usr/bin/gputenancy-operator"],
            )
        },
        Layout {
            driver_libraries: true,
            dockerfile: Some("agent/daemon/Dockerfile"),
            ..image(
                "lab.local/gputenancy-agent:dev",
                &[
                    ("/usr/bin/gputenancy-agent", Source::Cargo("gputenancy-agent")),
                    ("/usr/lib/gputenancy/libgputenancy_cuda.so", Source::Cargo("libgputenancy_cuda.so")),
                    ("/usr/lib/gputenancy/libgputenancy_nvml_view.so", Source::Cargo("libgputenancy_nvml_view.so")),
                ],
                &["/usr/bin/gputenancy-agent"],
            )
        },
        Layout {
            driver_libraries: true,
            dockerfile: Some("integration/images/simulator.Dockerfile"),
            ..image(
                "lab.local/gputenancy-simulator:dev",
                &[
                    ("/usr/bin/nvsim", Source::Cargo("nvsim")),
                    ("/usr/lib/nvsim/libnvidia-ml.so.1", Source::Cargo("libnvml_sim.so")),
                    ("/usr/lib/nvsim/libcuda.so.1", Source::Cargo("libcuda_sim.so")),
                ],
                &["/usr/bin/nvsim"],
            )
        },
        Layout {
            driver_libraries: true,
            dockerfile: Some("integration/images/mig-manager.Dockerfile"),
            ..image(
                "lab.local/gputenancy-mig-manager:dev",
                &[("/usr/bin/mig-manager", Source::Cargo("mig-manager"))],
                &["/usr/bin/mig-manager"],
            )
        },
        Layout {
            applets: true,
            driver_libraries: true,
            dockerfile: Some("integration/images/workload.Dockerfile"),
            ..image(
                "lab.local/gputenancy-workload:dev",
                &[("/usr/bin/gpu-work", Source::Cargo("gpu-work")), ("/usr/bin/cuda-work", Source::Cargo("cuda-work"))],
                &["/usr/bin/gpu-work"],
            )
        },
    ]
}

/// Images that only some tests need, too large for every node: see [`crate::Lab::load_image`].
pub fn on_demand() -> Vec<Layout> {
    vec![
        // both roles of vCluster: an init container copies /kubernetes, the syncer starts what it copied
        Layout {
            applets: true,
            ..image(
                "lab.local/vcluster:0.36.1",
                &[
                    ("/vcluster", Source::Tool("vcluster")),
                    ("/kubernetes/kine", Source::Tool("kine")),
                    ("/kubernetes/kube-apiserver", Source::Tool("kube-apiserver")),
                    ("/kubernetes/kube-controller-manager", Source::Tool("kube-controller-manager")),
                ],
                &["/vcluster", "start"],
            )
        },
        // the version before, for upgrades: both have the same Kubernetes
        image("lab.local/vcluster:0.36.0", &[("/vcluster", Source::Tool("vcluster-0.36.0"))], &["/vcluster", "start"]),
        Layout {
            dockerfile: Some("operator/virtual-clusters/Dockerfile"),
            ..image(
                "lab.local/gputenancy-virtual-clusters:dev",
                &[
                    ("/usr/bin/gputenancy-virtual-clusters", Source::Cargo("gputenancy-virtual-clusters")),
                    ("/usr/bin/helm", Source::Tool("helm")),
                    ("/usr/share/gputenancy/charts/vcluster-0.36.1.tgz", Source::Chart("vcluster-0.36.1.tgz")),
                    // as a platform adds a version to the image (docs/virtual-clusters.md)
                    ("/usr/share/gputenancy/charts/vcluster-0.36.0.tgz", Source::Chart("vcluster-0.36.0.tgz")),
                ],
                &["/usr/bin/gputenancy-virtual-clusters"],
            )
        },
    ]
}

impl Layout {
    /// Its programs of the project.
    pub fn programs(&self) -> impl Iterator<Item = (&'static str, &'static str)> + '_ {
        self.files.iter().filter_map(|(path, source)| match source {
            Source::Cargo(file) => Some((*path, *file)),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines that a Dockerfile must have for this layout.
    fn expected(layout: &Layout) -> Vec<String> {
        let copies = layout.programs().map(|(path, file)| format!("/src/target/release/{file} {path}"));
        let entrypoint: Vec<_> = layout.entrypoint.iter().map(|word| format!("{word:?}")).collect();
        copies.chain([format!("ENTRYPOINT [{}]", entrypoint.join(", "))]).collect()
    }

    #[test]
    fn dockerfiles_match_the_image_layout() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        for layout in all().into_iter().chain(on_demand()) {
            let Some(file) = layout.dockerfile else { continue };
            let text = std::fs::read_to_string(root.join(file)).unwrap();
            for line in expected(&layout) {
                assert!(text.lines().any(|have| have.ends_with(&line)), "{file} lacks {line:?}");
            }
        }
    }

    #[test]
    fn image_entrypoint_is_in_the_image() {
        for layout in all().into_iter().chain(on_demand()) {
            let program = layout.entrypoint[0];
            assert!(layout.files.iter().any(|(path, _)| *path == program), "{}", layout.name);
        }
    }

    #[test]
    fn images_on_demand_are_in_no_lab_at_its_start() {
        for layout in on_demand() {
            assert!(all().iter().all(|other| other.name != layout.name), "{}", layout.name);
        }
    }
}
