//! The table of the tasks: what each reads, and what it writes. A channel that is subscribed to is read, one that is cloned is written.
//!
//! Two channels depend on each other. The [`DeviceView`](crate::device::DeviceView) follows from NVML, the desired layout and the
//! [`KubeletView`](crate::device::KubeletView); the latter follows from kubelet and the former, whose generation it confirms. They settle: owners, and
//! what can limit memory, are the same whether a device is withdrawn or not; a confirmed generation changes no device before NVML has destroyed it;
//! and a view with the same devices keeps its generation and is not sent.

use futures::{FutureExt as _, StreamExt as _, future::LocalBoxFuture, stream::FuturesUnordered};
use gputenancy_cluster::events::Publisher;
use gputenancy_crds::GpuNode;
use kube::Api;
use tokio_util::sync::CancellationToken;

use super::{context::Context, device_plugin::DevicePlugin, partitioning::Partitioning};
use crate::{
    attribution::{Attributor, tenants},
    audit::Auditor,
    dcgm::Dcgm,
    enforcement::{
        Arbitration, GrowthWatch, Resizer,
        driver::{self, DriverLimiter},
    },
    forbidden_variables::EnvironmentChecker,
    health::Health,
    incidents::Incidents,
    kubelet::{self, config::MemoryLimits, node::runtime_classes, plugin::owner_lookup::OwnerLookup},
    partition::{Reconciler, ServedLayouts},
    pod_watch::PodIndexes,
    pods_past_grace::OverdueStopper,
    report::{Reporter, gpu_node::GpuNodeWatch, writer::Writer},
    rights, unlimited_containers,
    usage::Sampler,
};

/// Tasks that end with the agent.
#[derive(Default)]
pub struct Tasks(FuturesUnordered<LocalBoxFuture<'static, &'static str>>);

impl Tasks {
    /// All but those that the shutdown needs: the device plugin and the two that report.
    pub fn of(context: &Context) -> Self {
        let mut tasks = Self::default();
        tasks.node(context);
        tasks.gpus(context);
        tasks.shares(context);
        tasks.pods(context);
        tasks
    }

    fn add(&mut self, name: &'static str, task: impl Future<Output = ()> + 'static) {
        self.0.push(task.map(move |()| name).boxed_local());
    }

    /// Polls all of them until one ends, which none should; returns its name.
    pub async fn ended(&mut self) -> &'static str {
        self.0.next().await.unwrap_or_default()
    }

    fn node(&mut self, context: &Context) {
        let Context { channels, metrics, client, .. } = context;
        let gpu_node = GpuNodeWatch {
            watched: channels.watched.clone(),
            client: client.clone(),
            node: context.node(),
            boot_id: context.boot_id.clone(),
        };
        self.add("watch of the GpuNode", gpu_node.run());
        let (client, refused) = (context.rights_client.clone(), context.refused.clone());
        self.add("check of rights", rights::keep(client, refused, channels.lacks.clone(), metrics.clone()));
    }

    fn gpus(&mut self, context: &Context) {
        let Context { channels, metrics, publish, mps, nvml, .. } = context;
        let reconciler = Reconciler::new(
            nvml.clone(),
            metrics.clone(),
            channels.kubelet.subscribe(),
            channels.view.clone(),
            channels.state.clone(),
            context.process_policy(),
        );
        let layouts = ServedLayouts::in_folder(&context.args.plugin.enforcement_dir);
        let partitioning = Partitioning {
            watched: channels.watched.subscribe(),
            kubelet: channels.kubelet.subscribe(),
            state: channels.state.subscribe(),
            heartbeat: channels.heartbeat.clone(),
            reconciler: reconciler.with_mps(mps.subscribe()).with_layouts(layouts),
        };
        self.add("partitioning", partitioning.run());
        let (mps, view) = (mps.clone(), channels.view.subscribe());
        self.add("MPS daemons", async move { mps.run(view).await });
        let incidents = Incidents {
            state: channels.state.subscribe(),
            publish: publish.clone(),
            metrics: metrics.clone(),
            node: context.node(),
        };
        self.add("incidents", incidents.run());
        let attributor = Attributor {
            state: channels.state.subscribe(),
            attributed: channels.attributed.clone(),
            origins: context.origins.clone(),
            tenants: tenants::by_grant(context.client.clone()),
            publish: publish.clone(),
            metrics: metrics.clone(),
            node: context.node(),
        };
        self.add("attribution of processes", attributor.run());
        let sampler = Sampler {
            nvml: nvml.clone(),
            dcgm: context.args.dcgm_exporter.clone().map(Dcgm::new),
            interval: context.args.usage_interval,
            state: channels.state.subscribe(),
            view: channels.view.subscribe(),
            kubelet: channels.kubelet.subscribe(),
            watched: channels.watched.subscribe(),
            origins: context.origins.clone(),
            tenants: tenants::by_grant(context.client.clone()),
            metrics: metrics.usage.clone(),
            node: context.node(),
        };
        self.add("samples of usage", sampler.run());
    }

    fn shares(&mut self, context: &Context) {
        let Context { channels, metrics, publish, sandboxes, .. } = context;
        let resizer = Resizer {
            view: channels.view.subscribe(),
            kubelet: channels.kubelet.subscribe(),
            sizes: channels.sizes.clone(),
            shares: context.shares(),
            publish: publish.clone(),
            node: context.node(),
        };
        self.add("sizes of shares", resizer.run());
        let exchange = driver::Channels {
            view: channels.view.subscribe(),
            kubelet: channels.kubelet.subscribe(),
            sizes: channels.sizes.subscribe(),
            inventory: context.inventory(),
            driver_limits: channels.driver_limits.clone(),
        };
        // without limits it clears those of before
        let config = &context.args.plugin;
        let enabled = config.memory_limits == MemoryLimits::Shim;
        let limiter = DriverLimiter::new(enabled, &config.enforcement_dir, context.cgroups(), context.nvml.clone());
        self.add("limits of the driver", limiter.run(exchange));
        let Some(sandboxes) = sandboxes else { return };
        let auditor = Auditor {
            view: channels.view.subscribe(),
            kubelet: channels.kubelet.subscribe(),
            bypasses: channels.bypasses.clone(),
            shares: context.shares(),
            processes: context.handover.clone(),
            sandboxes: Some(sandboxes.clone()),
            publish: publish.clone(),
            metrics: metrics.clone(),
            node: context.node(),
        };
        self.add("audit of shares", auditor.run());
        let growth = GrowthWatch {
            shares: context.shares(),
            view: channels.view.subscribe(),
            kubelet: channels.kubelet.subscribe(),
            origins: context.origins.clone(),
            publish: publish.clone(),
            node: context.node(),
        };
        self.add("sizes of ledgers", growth.run());
        let arbitration = Arbitration {
            view: channels.view.subscribe(),
            kubelet: channels.kubelet.subscribe(),
            pods: channels.compute.subscribe(),
            shares: context.shares(),
            publish: publish.clone(),
            metrics: metrics.clone(),
            node: context.node(),
        };
        self.add("arbitration of shares", arbitration.run());
        self.add("watch of RuntimeClasses", runtime_classes::watch(context.client.clone(), channels.classes.clone()));
        let reporter = unlimited_containers::Reporter {
            view: channels.view.subscribe(),
            kubelet: channels.kubelet.subscribe(),
            sandboxes: sandboxes.clone(),
            publish: publish.clone(),
            metrics: metrics.clone(),
            node: context.node(),
        };
        let files = unlimited_containers::Files::new(context.cgroups(), context.origins.proc_root.clone());
        self.add("unlimited containers", reporter.run(files));
    }

    fn pods(&mut self, context: &Context) {
        let Context { args, channels, metrics, client, .. } = context;
        let stopper = OverdueStopper {
            pods: channels.terminating.subscribe(),
            runtime: context.runtime(),
            client: client.clone(),
            publish: context.publish.clone(),
            metrics: metrics.clone(),
        };
        self.add("pods past their grace period", stopper.run());
        let Some(enforcement) = args.hidden_variables else { return };
        let (requests, warm_up) = (channels.requests.subscribe(), context.warm_up.clone());
        let checker = EnvironmentChecker {
            containers: channels.containers.subscribe(),
            view: channels.view.subscribe(),
            enforcement,
            capabilities: args.driver_capabilities.clone(),
            runtime: context.runtime(),
            lookup: OwnerLookup::new(&args.plugin, requests, warm_up),
            client: client.clone(),
            publisher: Publisher::new(client.clone(), "gputenancy.io/agent", &args.plugin.node_name),
            metrics: metrics.clone(),
        };
        self.add("variables of containers", checker.run());
    }
}

/// The device plugin, with the watch of pods. It reads `view` and writes `kubelet`.
pub fn device_plugin(context: &Context, stop: CancellationToken) -> DevicePlugin<'_> {
    let Context { args, channels, metrics, client, .. } = context;
    DevicePlugin {
        state: channels.state.subscribe(),
        watched: channels.watched.subscribe(),
        exchange: kubelet::Channels {
            devices: channels.view.subscribe(),
            requests: channels.requests.subscribe(),
            driver_limits: channels.driver_limits.subscribe(),
            kubelet: channels.kubelet.clone(),
            handover: context.handover.clone(),
            mps: Some(context.mps.clone()),
            sandboxes: context.sandboxes.clone(),
            warm_up: context.warm_up.clone(),
        },
        // writes them
        pods: PodIndexes {
            requests: &channels.requests,
            containers: &channels.containers,
            limits: &channels.other_limits,
            compute: &channels.compute,
            terminating: &channels.terminating,
            seen: &context.seen,
        },
        config: args.plugin.clone(),
        client: client.clone(),
        metrics: metrics.clone(),
        boot_id: context.boot_id.clone(),
        stop,
    }
}

/// Writes the status of the `GpuNode`.
pub fn reporter(context: &Context) -> Reporter {
    let Context { channels, metrics, client, .. } = context;
    Reporter {
        watched: channels.watched.subscribe(),
        state: channels.state.subscribe(),
        view: channels.view.subscribe(),
        kubelet: channels.kubelet.subscribe(),
        mps: context.mps.subscribe(),
        attributed: channels.attributed.subscribe(),
        bypasses: channels.bypasses.subscribe(),
        sizes: channels.sizes.subscribe(),
        other_limits: channels.other_limits.subscribe(),
        calls: context.calls.clone(),
        origins: context.origins.clone(),
        sandboxes: context.sandboxes.clone(),
        boot_id: context.boot_id.clone(),
        writer: Writer::new(Api::<GpuNode>::all(client.clone()), &context.node(), metrics.clone()),
    }
}

/// What the endpoints report.
pub fn health(context: &Context) -> Health {
    let Context { channels, metrics, .. } = context;
    Health {
        heartbeat: channels.heartbeat.subscribe(),
        state: channels.state.subscribe(),
        lacks: channels.lacks.subscribe(),
        metrics: metrics.clone(),
    }
}
