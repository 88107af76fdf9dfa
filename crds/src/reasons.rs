//! Names that are API: condition types, reasons of conditions and events, labels and annotations, each with meaning and remedy.
//!
//! A [`Reason`] can only come from this table, and `docs/reference/conditions-and-events.md` is written from it (`make crds`).

use std::fmt::{self, Write as _};

use crate::names;

/// Reason of a condition or an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reason(&'static str);

impl Reason {
    /// The reason as written into objects.
    pub const fn as_str(self) -> &'static str {
        self.0
    }

    /// The reason of this name that conditions have; such a reason is published as an event, too.
    pub fn listed(name: &str) -> Option<Self> {
        CONDITIONS.iter().map(|entry| Self(entry.name)).find(|reason| reason == name)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl From<Reason> for String {
    fn from(reason: Reason) -> Self {
        reason.0.to_owned()
    }
}

impl PartialEq<str> for Reason {
    fn eq(&self, other: &str) -> bool {
        self.0 == other
    }
}

impl PartialEq<&str> for Reason {
    fn eq(&self, other: &&str) -> bool {
        self.0 == *other
    }
}

/// One row of the reference page.
pub struct ReasonEntry {
    /// The name as written into objects.
    pub name: &'static str,
    /// The objects that carry it.
    pub on: &'static str,
    /// Its meaning.
    pub meaning: &'static str,
    /// The remedy.
    pub remedy: &'static str,
}

macro_rules! table {
    ($table:ident: $($name:expr, $on:literal, $meaning:literal, $remedy:literal;)*) => {
        const $table: &[ReasonEntry] = &[$(ReasonEntry { name: $name, on: $on, meaning: $meaning, remedy: $remedy }),*];
    };
}

macro_rules! reasons {
    ($table:ident: $($constant:ident = $name:literal, $on:literal, $meaning:literal, $remedy:literal;)*) => {
        $(#[doc = $meaning] pub const $constant: Reason = Reason($name);)*
        table! { $table: $($name, $on, $meaning, $remedy;)* }
    };
}

// Condition types.
table! { TYPES:
    "Ready", "all", "The object is as its spec states.", "When False, read reason and message.";
    "Reconciling", "all", "Work is in progress.", "Wait.";
    "Stalled", "all", "No progress until something outside changes.", "Do what the message says.";
    "NamespacesReady", "GpuTenant", "All namespaces exist and belong to the tenant.", "See the reason.";
    "PolicyReady", "GpuTenant", "Grant, network policy, limits and role bindings are written. In status.virtualCluster: the namespace has its grant and quota, and where configured its LimitRange and NetworkPolicy. No new control plane is written before.", "See the reason.";
    "QuotaReady", "GpuTenant", "The enforced quotas add up to the budget.", "See the reason.";
    "CapacityReady", "GpuTenant", "Every guaranteed device exists.", "See the reason.";
    "PullSecretsReady", "GpuTenant", "Image pull secrets are copied; only with spec.imagePullSecrets.", "See the reason.";
    "QueueReady", "GpuPool, GpuTenant", "GpuTenant: Kueue admits the tenant's jobs within the guarantees and what may be borrowed; only with a profile of a pool with spec.queueing. GpuPool: Kueue can admit jobs for the pool's devices; only with spec.queueing.system: Kueue.", "See the reason.";
    "Suspended", "GpuTenant", "spec.suspend is true: no new work is admitted.", "Set spec.suspend to false to resume.";
    "EarlierAccess", "GpuTenant", "An adopted namespace has role bindings, or network policies that open something, from before it was adopted.", "Remove those that should not hold; the message has the command.";
    "DemandMet", "GpuPool", "The pool serves every guarantee for its profiles.", "See status.unsatisfied.";
    "ForeignPartitioner", "GpuPool", "Another product, or a newer release of this one, owns GPUs of a node; nothing is changed there.", "Do what the message says.";
    "EnforcementMet", "GpuPool", "Every node of the pool can limit shares as spec.enforcement.minimum demands; only with a minimum other than None.", "See the reason.";
    "AgentSilent", "GpuPool", "The agent of a node does not report: its devices do not count as free, and no change starts there.", "Do what the message says; when the agent returns all resumes, except a staged rollout that has stopped.";
    "NodesMarked", "GpuPool", "Others have cordoned or tainted nodes, or marked them as unhealthy: their free devices do not count, and no change starts or proceeds there. Running pods keep their devices.", "When the node is in order, uncordon it or remove the taint; spec.health says what counts.";
    "DemandFlapping", "GpuPool", "A guarantee for a profile of the pool changes up and down again and again. Its changes wait for spec.disruption.settleTime.", "Let one writer own the field: status.flapping names them.";
    "NvmlReady", "GpuNode", "NVML responds.", "See the reason.";
    "Resized", "GpuProfile", "No running pod has more memory than device.fraction.memory. The condition exists only while it is False.", "See the reason.";
    "IntervalApplied", "GpuProfile", "The length of time-slices is set; only with device.timeSlice.interval other than Default.", "See the reason.";
    "RolledOut", "GpuPool", "Nothing new waits for its soak time; only with spec.rollout.", "See the reason.";
    "MpsReady", "GpuNode", "The MPS daemons of shared GPUs run; only with MPS shares.", "See the reason.";
    "MemoryLimited", "GpuNode, GpuTenant", "GpuNode: time-slices and fractions are served with a memory limit; only where it is switched on. GpuTenant: something limits the memory of every pod with a device.", "See the reason.";
    "MemoryScrubbed", "GpuNode", "The driver overwrites GPU memory that a process frees, before another process gets it.", "See the reason.";
    "VgpuLicensed", "GpuNode", "The vGPUs of a virtual machine have their licence; only where NVML reports one.", "See the reason.";
    "gputenancy.io/DevicesReady", "Node", "All devices of the node are advertised and healthy. Written by the agent, which removes it when it leaves; absent without GPUs in a layout, and with NVIDIA's device plugin.", "See the reason; the message names the GPUs.";
    "PluginReady", "GpuNode", "kubelet has registered every resource of the node.", "See the reason.";
    "VirtualClusterReady", "GpuTenant", "The virtual cluster serves, as spec.virtualCluster states; only with that field. Details are in status.virtualCluster.conditions.", "See the reason.";
    "ChartRendered", "GpuTenant (status.virtualCluster)", "The objects of vCluster's chart are rendered and applied.", "See the reason.";
    "ControlPlaneReady", "GpuTenant (status.virtualCluster)", "The control plane of the virtual cluster runs.", "See the reason.";
    "KubeconfigReady", "GpuTenant (status.virtualCluster)", "The Secret with the team's kubeconfig has a valid token.", "See the reason.";
    "CapacityShown", "GpuTenant (status.virtualCluster)", "Nodes inside the virtual cluster show the tenant's budget.", "See the reason.";
    "CatalogShown", "GpuTenant (status.virtualCluster)", "The virtual cluster has the tenant's catalog, and the RuntimeClasses and PriorityClasses that its pods may name.", "See the reason.";
    "gputenancy.io/QuotaAvailable", "ReplicaSet, StatefulSet, Job", "The quota now has headroom for a pod that it refused; the update makes the controller retry.", "None.";
}

reasons! { CONDITIONS:
    ACTIVE = "Active", "GpuTenant", "All namespaces exist.", "None.";
    AGENT_STOPPED = "AgentStopped", "GpuNode", "The agent has ended: it was taken off the node, or restarts.", "See that the DaemonSet of the agent selects the node.";
    ANSWERS = "Answers", "GpuNode", "NVML responds.", "None.";
    APPLYING = "Applying", "GpuTenant", "Objects are being written, or Kubernetes has not enforced them yet.", "Wait. If it stays, read the operator's log and kube-controller-manager's.";
    AVAILABLE = "Available", "GpuTenant", "Every guaranteed device exists.", "None.";
    BUDGET_SHOWN = "BudgetShown", "GpuTenant", "Nodes of the virtual cluster show the tenant's budget.", "None.";
    CATALOG_NOT_WRITTEN = "CatalogNotWritten", "GpuTenant", "The catalog or a class inside the virtual cluster cannot be read or written.", "Do what the message says: usually remove a webhook, policy or finalizer inside that is in the way.";
    CATALOG_WRITTEN = "CatalogWritten", "GpuTenant", "The catalog and the classes inside the virtual cluster are as they should be.", "None.";
    CHANGE_FAILED = "ChangeFailed", "GpuPool", "A change failed and the old layout is back.", "Read the message; retried with exponential backoff, and at once when the plan has another layout: docs/changes.md.";
    CHANGE_PLANNED = "ChangePlanned", "GpuPool, GpuTenant", "GPUs are to be changed and have not started, or wait for a canary pod after a fault.", "Wait for the window, the limit or the canary pod that the message names.";
    CHANGE_STUCK = "ChangeStuck", "GpuPool", "Neither the new nor the old layout can be reached.", "Do what the message says: usually end a process, reset the GPU or restart the node.";
    CHANGING = "Changing", "GpuPool, GpuTenant", "GPUs are being changed.", "Wait; kubectl gpu changes follows it.";
    CONTROL_PLANE_DOWN = "ControlPlaneDown", "GpuTenant", "The control plane of the virtual cluster does not become ready.", "Do what the message says; read the log of its pod.";
    CONTROL_PLANE_SERVES = "ControlPlaneServes", "GpuTenant", "The control plane of the virtual cluster runs.", "None.";
    CONTROL_PLANE_STARTING = "ControlPlaneStarting", "GpuTenant", "The control plane of the virtual cluster starts.", "Wait.";
    COPIED = "Copied", "GpuTenant", "Each namespace has its image pull secrets.", "None.";
    CREATING = "Creating", "GpuTenant, GpuNode", "Namespaces or MIG instances are being created.", "Wait.";
    DELETING = "Deleting", "GpuTenant, GpuPool", "The object is being deleted.", "Wait; the message names what is left.";
    DELETION_BLOCKED = "DeletionBlocked", "GpuTenant", "A namespace has not gone in time.", "The message names what blocks it, such as a finalizer.";
    DELETION_PROTECTED = "DeletionProtected", "GpuTenant", "Deletion was requested and spec.deletionProtection is true.", "Set spec.deletionProtection to false to delete.";
    DEMAND_SETTLED = "DemandSettled", "GpuPool", "No guarantee for a profile of the pool changes up and down.", "None.";
    DESTROYING = "Destroying", "GpuNode", "MIG instances are being destroyed.", "Wait.";
    DEVICE_PLUGIN_DOWN = "DevicePluginDown", "GpuNode", "kubelet lists none of the devices that NVIDIA's device plugin has to advertise on the node.", "See that the plugin's pod runs there, and read its log.";
    DEVICES_ADVERTISED = "DevicesAdvertised", "Node", "All devices of the node are advertised and healthy.", "None.";
    DEVICES_NOT_ADVERTISED = "DevicesNotAdvertised", "Node", "Devices of a GPU go to no new pod, as during a change.", "Wait; kubectl gpu changes shows the change.";
    DRIVER_NOT_FOUND = "DriverNotFound", "GpuNode", "libnvidia-ml.so.1 was not found.", "Install the driver, or set agent.driverRoot.";
    EARLIER_ACCESS = "EarlierAccess", "GpuTenant", "Role bindings, or network policies that open something, are older than the adoption of their namespace. As an event: once, when the condition appears.", "Remove those that should not hold; the message has the command.";
    ENFORCED = "Enforced", "GpuTenant", "The quotas are enforced.", "None.";
    ENFORCEMENT_TOO_WEAK = "EnforcementTooWeak", "GpuPool", "A node cannot limit the memory of shares as spec.enforcement.minimum demands, and offers none.", "Do what the message says for the node, or lower the minimum.";
    FAILED = "Failed", "GpuNode", "The agent's last step on a GPU failed.", "See status.gpus[].error.";
    FLAPPING = "Flapping", "GpuPool", "A guarantee has changed from growing to shrinking or back three times within 5 minutes. GPUs follow it when it has stayed the same for spec.disruption.settleTime.", "Take spec.gpus of the GpuTenant out of all manifests but one; the message and status.flapping name the field managers.";
    FIXED_DOES_NOT_FIT = "FixedDoesNotFit", "GpuPool", "The layout in spec.layout.fixed does not fit on the board.", "Correct spec.layout.fixed.";
    FOREIGN_PARTITIONER = "ForeignPartitioner", "GpuPool", "Another product, or a newer release of this one, owns GPUs of a node of the pool.", "Do what the message says.";
    FOUND = "Found", "GpuPool", "Another owner was found.", "See the message.";
    GPU_MISSING = "GpuMissing", "GpuNode, Node", "The spec names GPUs that NVML does not list.", "Restart the node; replace the GPU if it stays away.";
    GPU_UNHEALTHY = "GpuUnhealthy", "GpuNode, Node", "A critical Xid or uncorrectable ECC error was reported.", "Reset or replace the GPU.";
    GRANTED = "Granted", "GpuTenant", "Each namespace has its grant.", "None.";
    GPU_WITHDRAWN = "GpuWithdrawn", "Node", "Others have withdrawn a GPU of the node by the annotation gputenancy.io/withdrawn-gpus.", "When the GPU is in order, take it out of the annotation.";
    INVALID_MARK = "InvalidMark", "GpuPool", "The annotation gputenancy.io/withdrawn-gpus or gputenancy.io/cleared-faults of a Node has entries that are not understood: they have no effect.", "Do what the message says: write UUIDs as status.gpus of the GpuNode has them, as `UUID` or `UUID=reason`, in the second annotation as `UUID=time`, comma separated.";
    MARKED = "Marked", "GpuPool", "Others have cordoned or tainted a node of the pool, or marked it as unhealthy.", "When the node is in order, uncordon it or remove the taint; spec.health says what counts.";
    MEMORY_IN_USE = "MemoryInUse", "GpuProfile", "Running pods hold more than device.fraction.memory and keep their former limit; the planner counts that one.", "Restart the pods that the message names, or set device.fraction.resize: Force.";
    INTERVAL_NOT_APPLIED = "IntervalNotApplied", "GpuProfile", "NVML cannot set the length of time-slices; the driver's default is used.", "Set it with nvidia-smi compute-policy on the nodes; the condition stays until the field is left out.";
    INVALID_SPEC = "InvalidSpec", "GpuPool, GpuProfile", "A field has a value that cannot be used.", "Correct the field that the message names.";
    INVALID_WINDOW = "InvalidWindow", "GpuPool", "A maintenance window cannot be parsed; no change starts.", "Correct spec.disruption.windows.";
    KUBECONFIG_WRITTEN = "KubeconfigWritten", "GpuTenant", "The Secret with the team's kubeconfig has a valid token.", "None.";
    LEFT_ALONE = "LeftAlone", "GpuNode", "The layout differs from the spec, and the agent is not the partitioner.", "Wait for the partitioner, or change spec.partitioner of the pool.";
    LICENSED = "Licensed", "GpuNode", "Every vGPU of the node has a licence.", "None.";
    LIMITED = "Limited", "GpuNode, GpuTenant", "Containers with time-slices and fractions get the library that limits their memory; of a tenant every pod with a device has a limit.", "None.";
    MINIMUM_MET = "MinimumMet", "GpuPool", "Every node of the pool can limit shares as demanded.", "None.";
    MPS_CLIENTS_NEAR_LIMIT = "MpsClientsNearLimit", "GpuNode", "At least 90 % of the clients that an MPS server takes are connected.", "Use fewer processes per pod, or fewer shares of the GPU.";
    MPS_DAEMON_DOWN = "MpsDaemonDown", "GpuNode", "The MPS daemon of a GPU has ended; its shares are withdrawn until it runs again.", "The agent restarts it. Delete the pods that the message names if their programs do not end by themselves.";
    MPS_SERVING = "MpsServing", "GpuNode", "The MPS daemons of shared GPUs run.", "None.";
    NAMESPACE_CONFLICT = "NamespaceConflict", "GpuTenant", "A listed namespace exists and is not the tenant's.", "Have a user with the right to create RoleBindings in the namespace set adopt: true, and one with the right to update GpuTenants label it gputenancy.io/adoptable=true, or choose another name.";
    NAMESPACE_NOT_ADOPTABLE = "NamespaceNotAdoptable", "GpuTenant", "spec.namespaces has adopt: true for an existing namespace without the label gputenancy.io/adoptable=true.", "Run the command of the message as a user with the right to update GpuTenants, or choose another name.";
    NAMESPACE_TERMINATING = "NamespaceTerminating", "GpuTenant", "A listed namespace is being deleted.", "Wait; it is created again afterwards.";
    NO_AGENT = "NoAgent", "GpuPool", "No agent has reported from a node of the pool.", "See that the agent's pod runs there.";
    NO_API_SERVER = "NoApiServer", "GpuTenant", "No address of the API server is known, so isolated pods cannot reach it.", "See that Service kubernetes in namespace default has an EndpointSlice.";
    NO_NODES = "NoNodes", "GpuPool", "No node matches spec.nodeSelector.", "Label the nodes, or correct the selector.";
    NODE_NOT_READY = "NodeNotReady", "GpuPool", "A node is not Ready, or its agent does not report; it is left alone.", "Do what the message says.";
    NONE = "None", "GpuPool", "No other owner was found.", "None.";
    NOT_LIMITED = "NotLimited", "GpuTenant", "Nothing limits the memory of pods with shares, or of their neighbours.", "Do what the message says; afterwards restart the pods.";
    NOT_REGISTERED = "NotRegistered", "GpuNode", "kubelet has not registered every resource.", "Wait; if it stays, read the logs of agent and kubelet.";
    NOT_SERVED = "NotServed", "GpuPool", "The device plugin of the pool does not serve shares of this kind, or not with the pool's other profiles.", "Do what the message says, or set spec.advertiser and spec.partitioner: Agent.";
    NVML_FAILED = "NvmlFailed", "GpuNode", "An NVML call failed.", "The message names call and code.";
    NVML_TIMEOUT = "NvmlTimeout", "GpuNode", "An NVML call does not return.", "Look for Xid errors in the kernel log; restart the node.";
    OBJECTS_APPLIED = "ObjectsApplied", "GpuTenant", "The objects of vCluster's chart are applied.", "None.";
    SCRUB_DISABLED = "ScrubDisabled", "GpuNode", "The registry key RMDisableScrubOnFree is set: the driver does not overwrite freed GPU memory, and a pod can read what the pod before it has left. Unless spec.enforcement.unscrubbedMemory of the pool is Accept, no new pod gets a device of the node.", "Remove the key from NVreg_RegistryDwords and NVreg_RegistryDwordsPerDevice: in /etc/modprobe.d, or in driver.kernelModuleConfig of the GPU Operator. Then drain the node and reboot it.";
    SCRUB_UNKNOWN = "ScrubUnknown", "GpuNode", "The registry keys of the driver cannot be read, or the hypervisor has them. The node is served.", "Run cat /proc/driver/nvidia/params on the node: without the file the kernel module is not loaded, or /proc is masked. With vGPUs see the hypervisor.";
    SCRUBBED = "Scrubbed", "GpuNode", "No registry key disables that the driver overwrites freed GPU memory.", "None.";
    OTHER_LIMITER_FOUND = "OtherLimiterFound", "GpuNode", "Another product limits memory on the node, such as HAMi or kai-gpu-fractioning; the agent's limits are off for new containers. GpuNode.status.enforcement.otherLimits lists those of the other product.", "Remove the other product from the node with what the message names, or set agent.memoryLimits: None.";
    OUTAGE_REFUSED = "OutageRefused", "GpuPool", "A change would remove the last device of a profile in use.", "Set spec.disruption.allowOutage, or add GPUs.";
    OVER_BUDGET = "OverBudget", "GpuTenant", "More is used than the budget allows; no new work is admitted.", "End work, or raise the budget.";
    PARTITION_FAILED = "PartitionFailed", "GpuNode", "An NVML call that partitions a GPU failed.", "The message names call and code. The change is rolled back and retried.";
    PLANNING = "Planning", "GpuTenant", "The plan does not include this generation yet.", "Wait.";
    PLATFORM_NOT_SUPPORTED = "PlatformNotSupported", "GpuNode", "The node is a Jetson or runs in WSL: its GPUs are not managed.", "Take the node out of the GpuPool and out of agent.nodeSelectors, and run NVIDIA's device plugin on it.";
    PLUGIN_NOT_READY = "PluginNotReady", "GpuNode", "kubelet has not registered every resource.", "Wait; if it stays, read the logs of agent and kubelet.";
    POOL_OVERLAP = "PoolOverlap", "GpuPool", "A node matches two pools; both leave it alone.", "Correct one of the selectors.";
    PROFILE_NOT_FOUND = "ProfileNotFound", "GpuPool, GpuTenant", "A named GpuProfile does not exist.", "Create it, or remove its name.";
    PROFILE_NOT_SUPPORTED = "ProfileNotSupported", "GpuPool, GpuProfile", "No board of the pool can carry the profile.", "Remove the profile from spec.profiles, or correct its device or products.";
    PULL_SECRET_CONFLICT = "PullSecretConflict", "GpuTenant", "The namespace has a Secret of this name that the operator did not create.", "Delete it, or choose another name.";
    PULL_SECRET_INVALID_TYPE = "PullSecretInvalidType", "GpuTenant", "The Secret is not of type kubernetes.io/dockerconfigjson.", "Create it with kubectl create secret docker-registry.";
    PULL_SECRET_MISSING = "PullSecretMissing", "GpuTenant", "The operator's namespace has no Secret of this name.", "Create it there with kubectl create secret docker-registry.";
    PULL_SECRET_NOT_ALLOWED = "PullSecretNotAllowed", "GpuTenant", "The chart does not allow this name.", "Add it to tenants.imagePullSecrets, or remove it from the tenant.";
    QUEUED = "Queued", "GpuPool, GpuTenant", "Kueue admits jobs of the tenant, or for the devices of the pool, by the limits that the operator writes.", "None.";
    QUEUEING_DISABLED = "QueueingDisabled", "GpuPool, GpuTenant", "A pool has spec.queueing.system: Kueue, and the chart does not serve it.", "Set queueing.kueue.enabled=true in the chart's values, or spec.queueing.system: None in the pool.";
    QUEUE_CONFLICT = "QueueConflict", "GpuTenant", "Pools with different spec.queueing.system offer a profile of the tenant.", "Write the same system in all pools that the message concerns.";
    QUEUE_FOREIGN = "QueueForeign", "GpuPool, GpuTenant", "An object of Kueue has the name of one that the operator would write, and is not the operator's.", "Delete the object that the message names, if it is not needed.";
    QUEUE_NOT_ACTIVE = "QueueNotActive", "GpuPool, GpuTenant", "GpuTenant: Kueue has not accepted the tenant's ClusterQueue, or has not run since it was written. GpuPool: the operator's AdmissionCheck is not active yet.", "See that Kueue runs; kubectl describe clusterqueue says what it lacks.";
    QUEUE_PENDING = "QueuePending", "GpuPool, GpuTenant", "Objects of Kueue for the tenant or the pool are not written yet.", "Wait; if it stays, install Kueue, or set spec.queueing.system of the pool to None.";
    QUOTA_ALONE = "QuotaAlone", "GpuTenant", "A pool has spec.queueing.system: Kueue, and the tenant has a virtual cluster, whose pods have no queue.", "None; nothing is borrowed or lent.";
    QUOTA_AVAILABLE = "QuotaAvailable", "ReplicaSet, StatefulSet, Job", "The quota has headroom for the controller's pod.", "None.";
    READY = "Ready", "all", "The object is as its spec states.", "None.";
    REGISTERED = "Registered", "GpuNode", "kubelet has registered every resource.", "None.";
    RENDER_FAILED = "RenderFailed", "GpuTenant", "helm template failed for the virtual cluster.", "Do what the message says: usually correct spec.virtualCluster.values.";
    REPORTING = "Reporting", "GpuPool", "Every agent that has reported before still reports, or is silent for less than a minute.", "None.";
    RESOURCE_NAME_CONFLICT = "ResourceNameConflict", "GpuProfile, GpuPool", "Another profile has this resource name.", "Change spec.resourceName of one of the two.";
    RESOURCE_NAME_NOT_SUPPORTED = "ResourceNameNotSupported", "GpuPool", "The pool cannot offer a profile under its resource: NVIDIA's device plugin has another name for it, or nvidia.com/gpu and spec.strategy of the pool do not agree.", "Do what the message says: another spec.resourceName of the profile, another spec.strategy of the pool, or the profile in another pool.";
    ROLLED_OUT = "RolledOut", "GpuPool", "No node has, or waits for, anything new.", "None.";
    ROLLOUT_SOAKING = "RolloutSoaking", "GpuPool", "The first nodes serve what is new; the others follow after the soak time.", "Wait, and watch the pods on the nodes that the message names.";
    ROLLOUT_STAGED = "RolloutStaged", "GpuPool", "The first nodes change to what is new; the others wait.", "Wait; status.pending names what a GPU waits for.";
    ROLLOUT_STOPPED = "RolloutStopped", "GpuPool", "A new definition has failed on one of the first nodes; no other node begins.", "Set the profile or layout back, or correct it; after a repair of the node edit any field of the pool's spec: docs/rollout.md.";
    SERVED = "Served", "GpuPool", "Every guarantee for the pool's profiles is served.", "None.";
    SETTING_MODE = "SettingMode", "GpuNode", "MIG mode is being switched.", "Wait.";
    SHARING_NOT_ACKNOWLEDGED = "SharingNotAcknowledged", "GpuTenant", "The tenant lists a share of a GPU without an acknowledgement of what shares do not isolate.", "Write the person or group that accepts it in spec.sharing.acknowledgedBy, or remove the profile.";
    SHIM_NOT_INSTALLED = "ShimNotInstalled", "GpuNode", "Time-slices and fractions are served without a memory limit.", "Read the agent's log; restart the agent after the repair.";
    SHORTAGE = "Shortage", "GpuPool, GpuTenant", "GPUs do not suffice for all guarantees.", "Add GPUs, or lower guarantees; the message names pods in the way.";
    SILENT = "Silent", "GpuPool", "The agent of a node has not reported for more than a minute.", "Do what the message says.";
    STARTING = "Starting", "GpuNode", "The agent has not read NVML or the spec yet.", "Wait.";
    SUSPENDED = "Suspended", "GpuTenant", "spec.suspend is true.", "Set spec.suspend to false to resume.";
    TAINT_NOT_TOLERATED = "TaintNotTolerated", "GpuPool", "Pods of tenants do not tolerate spec.taint, so no node gets it.", "Use the key of policies.gpuTaint.";
    TOO_MANY_MARKED = "TooManyMarked", "GpuPool", "More GPUs are lost to faults than spec.health.maxUnavailable: no pod of the pool is evicted for a change.", "See whether the nodes are faulty, or what marks them; if they are, raise spec.health.maxUnavailable.";
    TRUST_TOO_LOW = "TrustTooLow", "GpuTenant", "The tenant's trust does not permit the profile.", "Choose another profile, or raise spec.trust.";
    UNLICENSED = "Unlicensed", "GpuNode", "A vGPU has no licence; NVIDIA's driver limits it after some time.", "Read the log of nvidia-gridd in the virtual machine, and see that it reaches the licence server.";
    UNMARKED = "Unmarked", "GpuPool", "No node of the pool is cordoned, tainted or marked as unhealthy.", "None.";
    UPGRADE_FAILED = "UpgradeFailed", "GpuTenant", "The control plane of a raised spec.virtualCluster.version was not ready in time; the version that ran before is applied again.", "Correct what the message names and change spec.virtualCluster.values or version. For another try without a change set version back and raise it again.";
    VALUES_REFUSED = "ValuesRefused", "GpuTenant", "spec.virtualCluster.values sets a key that belongs to the platform, or leads to objects outside of the tenant's namespace.", "Remove the key that the message names.";
    VERSION_DIFFERS = "VersionDiffers", "GpuTenant", "The adopted vCluster has another version than spec.virtualCluster.version.", "Write the version that the message names.";
    VERSION_NOT_SUPPORTED = "VersionNotSupported", "GpuTenant", "spec.virtualCluster.version is none of the chart's virtualClusters.charts.", "Choose one that the message names, or add it there.";
    VERSION_REFUSED = "VersionRefused", "GpuTenant", "spec.virtualCluster.version is lower than the running one, or skips a minor version.", "Choose a version that the message names.";
    VIRTUAL_CLUSTER_ADOPTED = "VirtualClusterAdopted", "GpuTenant", "The virtual cluster is one that existed before; the platform changes none of its objects in the tenant's namespace.", "None.";
    VIRTUAL_CLUSTER_NOT_FOUND = "VirtualClusterNotFound", "GpuTenant", "The tenant's namespace has no vCluster of the tenant's name to adopt.", "Install vCluster's chart with the release name that the message gives.";
    VIRTUAL_CLUSTER_PAUSED = "VirtualClusterPaused", "GpuTenant", "The control plane of the virtual cluster is stopped.", "Do what the message says: set spec.virtualCluster.suspend to false, or run vcluster resume NAME -n NAMESPACE after vcluster pause.";
    VIRTUAL_CLUSTER_PENDING = "VirtualClusterPending", "GpuTenant", "An earlier step is not done, or the controller of virtual clusters has not reported this generation of the tenant yet.", "See the first condition that is not True. If there is none, see that the Deployment gputenancy-virtual-clusters runs, and read its log.";
    VIRTUAL_CLUSTER_UNREACHABLE = "VirtualClusterUnreachable", "GpuTenant", "The controller cannot use the API server of the virtual cluster, its credentials, or the Secret of the kubeconfig.", "Do what the message says; read the log: kubectl logs -n NAMESPACE -l app=vcluster,release=NAME.";
    VIRTUAL_CLUSTERS_DISABLED = "VirtualClustersDisabled", "GpuTenant", "spec.virtualCluster is set, and the chart does not serve virtual clusters.", "Set virtualClusters.enabled=true in the chart's values, or remove spec.virtualCluster.";
    WAITING_FOR_CLIENTS = "WaitingForClients", "GpuNode", "A process still uses an instance that must be destroyed.", "Wait, or end the process that status.gpus[].holders names.";
    WAITING_FOR_RESET = "WaitingForReset", "GpuNode", "The MIG mode is pending until the GPU is reset.", "End what holds the GPU, or restart the node.";
    WEIGHT_UNKNOWN = "WeightUnknown", "GpuTenant", "No board carries the profile, so its share of gpuEquivalents is unknown.", "Offer the profile in a pool, or remove it from the tenant.";
    WRITE_FAILED = "WriteFailed", "GpuTenant; as an event: GpuNode, GpuPool, GpuProfile", "The API server refused a write or did not answer.", "Retried; the message names the write and the error. See the API server and admission webhooks.";
}

reasons! { EVENTS:
    AGENT_RETURNED = "AgentReturned", "GpuPool", "The agents of all nodes report again.", "None.";
    AGENT_SILENT = "AgentSilent", "GpuPool", "The agent of a node has not reported for more than a minute.", "Do what the message says.";
    BUDGET_USED = "BudgetUsed", "Pod", "Inside a virtual cluster: the tenant's quota refuses the pod.", "Do what the message says.";
    CANARY_FAILED = "CanaryFailed", "GpuNode", "A canary pod failed on a new device, and the change is rolled back; or on a device of a GPU after a fault, and the GPU stays out.", "Read the end of the program's log in the message.";
    CANARY_PASSED = "CanaryPassed", "GpuNode", "Canary pods have verified the new devices, or a device of a GPU after a fault.", "None.";
    CHANGED = "Changed", "GpuNode", "A GPU has its new layout.", "None.";
    CHANGE_CANCELLED = "ChangeCancelled", "GpuNode", "The plan needs the present layout again, or several pools select the node and `drainTimeout` is over.", "None, or correct one of the selectors.";
    CHANGE_POSTPONED = "ChangePostponed", "GpuNode", "The window closed before the pods were gone.", "Lengthen the window or shorten the notice if it repeats.";
    CHANGE_REVISED = "ChangeRevised", "GpuNode", "The plan needs another layout than when the change started.", "None.";
    CHANGE_STARTED = "ChangeStarted", "GpuNode", "A change of a GPU's layout has started.", "None.";
    CORDONED = "Cordoned", "GpuNode", "The node is cordoned for a change under NVIDIA's device plugin.", "None; it is uncordoned afterwards.";
    CORDON_ANNOTATION_REMOVED = "CordonAnnotationRemoved", "GpuNode", "The mark of the operator's cordon was removed; the node is schedulable already.", "None.";
    DEVICE_PLUGIN_CONFIG_REPAIRED = "DevicePluginConfigRepaired", "GpuNode, ConfigMap", "Another client changed a config for NVIDIA's device plugin, or the label that selects it; it is restored.", "Change the GpuPool or GpuProfile instead.";
    COMPUTE_RESUMED = "ComputeResumed", "Pod", "Kernels of a container on a share are launched again.", "None.";
    COMPUTE_SUSPENDED = "ComputeSuspended", "Pod", "No kernel of a container is launched on its share, because the pod has the annotation gputenancy.io/suspend-compute; its memory stays allocated.", "Remove the annotation to resume.";
    DEVICE_PLUGIN_RESTARTED = "DevicePluginRestarted", "GpuNode", "NVIDIA's device plugin is restarted to read the new layout.", "None.";
    EVICTED = "Evicted", "Pod", "The pod owned a device that is removed, or bypassed the memory limit of its share in a pool with onBypass: Evict.", "None; its controller replaces it. Correct a program that bypasses the limit.";
    EVICTION_CANCELLED = "EvictionCancelled", "Pod", "The change is over and the pod stays.", "None.";
    DEVICE_LOST = "DeviceLost", "GpuNode, Pod", "A MIG device is gone while a pod has it: another program has destroyed it or turned MIG mode off.", "Find and stop that program; delete the pod, and it gets another device.";
    EVICTION_NOTICE = "EvictionNotice", "Pod", "The pod will be evicted at the time in the message.", "Save work before then.";
    EVICTION_REFUSED = "EvictionRefused", "Pod", "A PodDisruptionBudget refuses the eviction.", "Make the budget's pods healthy, or relax it.";
    FIELD_CONFLICT = "FieldConflict", "GpuNode", "Another client keeps changing labels, the taint or the cordon that the operator writes on the node.", "Stop the client that the message names; the operator repairs the field with increasing delay, at most every 5 minutes.";
    FORBIDDEN_VARIABLE = "ForbiddenVariable", "Pod", "A container got a variable by envFrom that policies refuse in a manifest.", "Remove the key from the ConfigMap or Secret.";
    FOREIGN_PARTITIONER_GONE = "ForeignPartitionerGone", "GpuPool", "The other owner is gone.", "None.";
    FAULT_CLEARED = "FaultCleared", "GpuNode", "A GPU gets new pods again after a fault: a canary pod has passed on it, a person has cleared the fault, or it was reset.", "None. After three faults in 24 hours no canary pod is tried.";
    GPU_LOST = "GpuLost", "GpuNode", "NVML has lost the GPU.", "Restart the node; replace the GPU if it stays away.";
    IN_USE = "InUse", "GpuNode", "A process holds the GPU.", "End it; status.gpus[].holders names it where NVML lists it.";
    KERNEL_UNCONTROLLABLE = "KernelUncontrollable", "Pod", "Kernels of a container on a fraction ran longer than two seconds, or a program has waited so long for one: its compute limit cannot stop them, and its neighbours may have waited.", "Make the kernels shorter, or use a MIG instance or a whole GPU.";
    LAYOUT_ADOPTED = "LayoutAdopted", "GpuNode", "The spec lacked devices that pods own, as after the GpuNode was deleted or restored from a backup: it has the layout that the agent served.", "None. If nobody deleted or restored the object, look for another client that writes it.";
    LAYOUT_DIFFERS = "LayoutDiffers", "GpuNode", "NVIDIA's MIG manager reported success and NVML shows another layout.", "Read the MIG manager's log.";
    LAYOUT_LOST = "LayoutLost", "GpuNode", "Instances of a converged layout are gone and cannot be restored.", "The message names the failed call.";
    MEMORY_LIMIT_BYPASSED = "MemoryLimitBypassed", "GpuNode, Pod", "NVML lists more memory for the processes of the container than the limit of its share counts: a program does not use the library that limits memory; or its ledger was damaged by a program of the container.", "Let the program load libcuda.so.1 from the usual path; restart the pod. GpuPool.spec.enforcement.onBypass: Evict evicts such pods.";
    MIG_MANAGER_FAILED = "MigManagerFailed", "GpuNode", "NVIDIA's MIG manager reported failure.", "Read its log.";
    MIG_MANAGER_REQUEST_REPEATED = "MigManagerRequestRepeated", "GpuNode", "NVIDIA's MIG manager did not respond in time; the request is repeated.", "None.";
    MIG_MANAGER_TIMEOUT = "MigManagerTimeout", "GpuNode", "NVIDIA's MIG manager did not respond to repeated requests.", "See that its pod runs on the node.";
    MODE_PENDING = "ModePending", "GpuNode", "The MIG mode needs a reset that did not happen in time.", "End what holds the GPU, or restart the node.";
    GPU_PROGRAM_FAULT = "GpuProgramFault", "GpuNode, Pod", "The driver reported an Xid error that a program causes.", "Look at the log of the program. On a shared GPU a program of another share may be the cause.";
    GPU_HARDWARE_FAULT = "GpuHardwareFault", "GpuNode, Pod", "The driver reported an Xid or ECC error of the GPU. It gets no new pods until status.gpus[].recovery of its GpuNode says that it is cleared.", "Delete pods that have failed. See status.gpus[].recovery: reset or replace the GPU unless a canary pod lets it return.";
    GPU_NODE_FAULT = "GpuNodeFault", "GpuNode, Pod", "The GPU does not answer until its node restarts. It gets no new pods.", "Drain the node and restart it; delete pods that have failed.";
    GHOST_MEMORY = "GhostMemory", "GpuNode", "NVML lists processes that have ended, or more memory in use than its processes hold. A device that a pod owns stays in use. Managed memory of running programs can be the cause.", "Find programs with /dev/nvidia* open on the node, such as lsof lists them, and end them; if there are none and the memory stays after the pods of the device have ended, reset the GPU.";
    IMAGE_WITHOUT_GLIBC = "ImageWithoutGlibc", "Pod", "The container of a limited share has musl and no glibc: CUDA and the library that limits memory cannot be loaded there.", "Use an image with glibc 2.17 or newer, such as Debian, Ubuntu or UBI.";
    SANDBOX_NOT_LIMITED = "SandboxNotLimited", "Pod", "The pod runs in a sandbox such as gVisor or Kata, which does not get the library that limits memory.", "Run the pod without the RuntimeClass, or use a MIG instance or a whole GPU. GpuPool.spec.enforcement.minimum: Software refuses such pods.";
    STOPPED_AFTER_DEADLINE = "StoppedAfterDeadline", "Pod", "Containers of a deleted pod with a GPU ran 30 seconds longer than its grace period, and the agent killed them.", "Correct postStart and preStop hooks that do not end, such as by a timeout in their command.";
    UNEXPLAINED_MEMORY = "UnexplainedMemory", "GpuNode", "Memory of a device is in use and no process uses it. It gets no new pods until the memory is free.", "Find programs with /dev/nvidia* open on the node, such as lsof lists them, and end them; if there are none, reset the GPU.";
    MPS_DAEMON_ENDED = "MpsDaemonEnded", "GpuNode, Pod", "The MPS daemon of a GPU has ended, and with it the CUDA contexts of all pods with shares of the GPU.", "The agent restarts it. Delete pods whose programs do not end by themselves.";
    NAMESPACE_ADOPTED = "NamespaceAdopted", "GpuTenant", "An existing namespace was adopted.", "None.";
    NAMESPACE_RELEASED = "NamespaceReleased", "GpuTenant", "A namespace stays after its tenant, without limits.", "Review the role bindings that remain in it.";
    NAMESPACE_RETAINED = "NamespaceRetained", "GpuTenant", "A namespace is no longer listed: it keeps its data and gets no GPUs.", "Delete it when its data is not needed.";
    ORPHANED_POD_DELETED = "OrphanedPodDeleted", "GpuTenant", "A pod of a virtual cluster was deleted inside with force, or is gone there, and still ran on its node; it gets its own grace period to end.", "None.";
    OVERDUE = "Overdue", "GpuNode", "A step was not finished in time.", "Read the agent's log.";
    PLACEMENT_REFUSED = "PlacementRefused", "GpuNode", "The board refuses the placement.", "None; another layout is planned, or the same one retried.";
    RECOVERED = "Recovered", "GpuNode", "A layout that was stuck is there after all.", "None.";
    RESET_REQUIRED = "ResetRequired", "GpuNode", "The GPU needs a reset.", "Reset it when nothing uses it, or restart the node.";
    QUEUE_PREEMPTED = "QueuePreempted", "Job", "Kueue suspends the job, because one of the same team with a higher priority uses its devices, and queues it again.", "None; the job starts again when devices are free.";
    QUEUE_RECLAIMED = "QueueReclaimed", "Job", "Kueue suspends the job, because it runs on borrowed devices that another team uses now, and queues it again.", "None; the job starts again when devices are free. A job within the guarantee is not suspended for another team.";
    QUEUE_WAITING = "QueueWaiting", "Job", "The job has waited for 10 seconds, because its team's queue has no quota for it. The message has the limits, what is in use, and the position.", "None; the job starts when devices are free. kubectl gpu tenant has the present position.";
    RESUMED = "Resumed", "GpuTenant", "spec.suspend is false again.", "None.";
    REQUEUED = "Requeued", "Pod", "The pod owned a device that is removed; Kueue suspends its job and queues it again.", "None; the job starts again when devices are free.";
    ROLLED_BACK = "RolledBack", "GpuNode", "A change failed and the old layout is back.", "The message says why.";
    ROLLING_BACK = "RollingBack", "GpuNode", "A change failed; the old layout is being restored.", "The message says why.";
    SHARE_MEMORY_HIGH = "ShareMemoryHigh", "Pod", "A container uses 80 or 90 % of the memory of its share; at 100 % allocations fail.", "Use less memory, or choose a larger share.";
    SHARE_RESIZE_REFUSED = "ShareResizeRefused", "Pod", "device.fraction.memory of the GpuProfile became less than a container on a fraction holds: the container keeps its memory limit.", "Let it free memory or restart the pod, or set device.fraction.resize: Force in the GpuProfile.";
    SHARE_RESIZED = "ShareResized", "Pod", "Memory or compute of a container's fraction changed, because device.fraction of its GpuProfile did; its programs run on. With resize: Force, a fraction that shrinks has at most one event a minute.", "None needed; where the memory changed, programs that read it at their start see the old size until they are restarted.";
    STUCK = "Stuck", "GpuNode", "Neither the new nor the old layout can be reached.", "Do what the message says.";
    TAINTED = "Tainted", "GpuNode", "The node has the taint of its pool.", "None.";
    UNCORDONED = "Uncordoned", "GpuNode", "The operator's cordon is removed.", "None.";
    VIRTUAL_CLUSTER_REMOVED = "VirtualClusterRemoved", "GpuTenant", "The virtual cluster is deleted; the message names volumes that are kept (storage.reclaim: Retain). With backend External it is no longer adopted, and runs on.", "None.";
    VIRTUAL_CLUSTER_REPAIRED = "VirtualClusterRepaired", "GpuTenant", "An object of the virtual cluster had been changed or deleted, and is as rendered again.", "Change spec.virtualCluster instead of its objects.";
    VGPU_UNLICENSED = "VgpuUnlicensed", "GpuNode", "A vGPU has lost its licence, or has none.", "Read the log of nvidia-gridd in the virtual machine, and see that it reaches the licence server.";
    UNTAINTED = "Untainted", "GpuNode", "The taint of the pool is removed.", "None.";
    SUSPICIOUS_POD = "SuspiciousPod", "GpuTenant", "A pod in the namespace of a virtual cluster has the label of its syncer, and its name does not follow from its annotations. It is charged to the tenant.", "Look at the pod that the message names: it was made or changed in the host namespace, past the syncer.";
    UPGRADE_STARTED = "UpgradeStarted", "GpuTenant", "The version of the virtual cluster was raised, and its new control plane starts.", "For a snapshot before it run the command of the message.";
    WAITING_FOR_DEVICE = "WaitingForDevice", "Pod", "Inside a virtual cluster: the pod is within the budget, and no node has a free device for it.", "Do what the message says.";
}

// Labels that are read or written.
table! { LABELS:
    names::TENANT_LABEL, "Namespace and all objects of a tenant", "Name of the tenant.", "Written by the operator.";
    names::REACHES_TENANTS_LABEL, "Namespace", "With true: pods of the namespace may connect to isolated tenants.", "Set it on namespaces of ingress controllers and monitoring; requires the right to update GpuTenants.";
    names::POOL_LABEL, "Node, GpuNode", "Name of the pool of the node.", "Written by the operator.";
    names::SIMULATED_LABEL, "Node", "The GPUs are simulated.", "Written by the operator.";
    names::LAYOUT_LABEL, "Node", "Hash of the layouts of the node's GPUs; equal on nodes with equal layouts.", "Written by the operator.";
    names::LAYOUT_STATE_LABEL, "Node", "steady, changing or failed.", "Written by the operator.";
    names::ENFORCEMENT_LABEL, "Node", "Weakest means that limits the memory of devices on the node: Hardware (MIG and whole GPUs), Driver, Server (MPS), Software or None.", "Written by the operator. With None see the condition MemoryLimited of the GpuNode.";
    names::CANARY_LABEL, "Pod", "Profile that the canary pod verifies.", "Written by the operator.";
    names::ADOPTABLE_LABEL, "Namespace", "With true: a tenant with adopt: true for the namespace may adopt it.", "Set it on a namespace before its adoption; requires the right to update GpuTenants. The operator cannot set it.";
    "gputenancy.io/retained-from", "Namespace", "Tenant that no longer lists the namespace.", "Written by the operator.";
    "gputenancy.io/aggregate-to-tenant-owner", "ClusterRole", "With true: the rules are added to those of tenant owners.", "Set it on a ClusterRole of your own.";
    "gputenancy.io/aggregate-to-viewer", "ClusterRole", "With true: the rules are added to gputenancy:viewer, editor and admin.", "Set it on a ClusterRole of your own.";
    "gputenancy.io/aggregate-to-editor", "ClusterRole", "With true: the rules are added to gputenancy:editor and admin.", "Set it on a ClusterRole of your own.";
    "gputenancy.io/aggregate-to-admin", "ClusterRole", "With true: the rules are added to gputenancy:admin.", "Set it on a ClusterRole of your own.";
    names::MIG_CONFIG_LABEL, "Node", "Layout that NVIDIA's MIG manager applies.", "Written by the operator in pools with partitioner: MigManager.";
    names::DEVICE_PLUGIN_CONFIG_LABEL, "Node", "Key of the config that NVIDIA's device plugin reads.", "Written by the operator in pools with a timeSlice profile and advertiser: NvidiaDevicePlugin.";
    names::MIG_STATE_LABEL, "Node", "State that NVIDIA's MIG manager reports.", "Read only.";
}

// Annotations that are read or written.
table! { ANNOTATIONS:
    names::SUSPEND_COMPUTE, "Pod", "With true: the agent stops kernel launches on the pod's shares of GPUs; its memory stays allocated, and nothing is evicted.", "Remove the annotation to resume. Any user with the right to patch the pod can set and remove it.";
    names::DO_NOT_EVICT, "Pod", "With true: a change does not evict the pod during GpuPool.spec.disruption.doNotEvictFor after its creation (default 168h); no effect with doNotEvict: Ignore.", "Set it on pods that must not be interrupted; recreate the pod to start the time again.";
    names::EVICTION_NOTICE, "Pod", "Deadline and reason of the coming eviction.", "Written by the operator.";
    "gputenancy.io/priority-class", "Pod", "PriorityClass that a pod inside a virtual cluster names. Its host pod gets the class if GpuGrant.spec.priorityClasses or policies.priorityClasses lists it, or if it is the cluster's default class.", "Written by a policy inside the virtual cluster.";
    names::TAINTED, "Node", "Taint that the operator added, as key=value:effect.", "Written by the operator.";
    names::WITHDRAWN_GPUS, "Node", "GPUs that others have withdrawn, as UUID or UUID=reason, comma separated.", "Written by administrators and health products to withdraw GPUs; remove it when they are in order.";
    names::CLEARED_FAULTS, "Node", "GPUs whose faults until a time count no more, as UUID=time, comma separated, such as GPU-5f0c…=2026-11-29T10:00:00Z.", "Written by administrators after a repair; later faults of the GPU count.";
    names::CORDONED, "Node", "Time at which the operator cordoned the node.", "Written by the operator.";
    names::CANARY_NODE, "Pod", "Node of the device that the canary pod verifies.", "Written by the operator.";
    "gputenancy.io/created-for", "Namespace", "UID of the tenant that the namespace was created for; it is deleted with the tenant.", "Written by the operator.";
    "gputenancy.io/adopted", "Namespace", "Time at which a tenant adopted the namespace.", "Written by the operator.";
    "gputenancy.io/written-by", "ResourceQuota", "Leader term and number of the last write.", "Written by the operator.";
}

/// All names, with the title of their section.
pub const SECTIONS: [(&str, &[ReasonEntry]); 5] = [
    ("Condition types", TYPES),
    ("Reasons of conditions", CONDITIONS),
    ("Reasons of events", EVENTS),
    ("Labels", LABELS),
    ("Annotations", ANNOTATIONS),
];

/// The reference page.
pub fn page() -> String {
    let mut page = String::from(
        "# Conditions, events, labels and annotations\n\n\
         Generated from `crds/src/reasons.rs` by `make crds`. These names are API: a renamed one has a line in the changelog.\n\n\
         GpuProfile, GpuPool, GpuTenant and GpuNode have the conditions `Ready`, `Reconciling` and `Stalled`. A new reason of `Ready` is also published as an event \
         of the object.\n",
    );
    for (title, entries) in SECTIONS {
        let _ = write!(page, "\n## {title}\n\n| name | object | meaning | remedy |\n|---|---|---|---|\n");
        for ReasonEntry { name, on, meaning, remedy } in entries {
            let _ = writeln!(page, "| `{name}` | {on} | {meaning} | {remedy} |");
        }
    }
    page
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn reasons_are_camel_case_and_unique_per_section() {
        for (title, entries) in SECTIONS {
            let names: BTreeSet<&str> = entries.iter().map(|e| e.name).collect();
            assert_eq!(names.len(), entries.len(), "{title}: a name is listed twice");
        }
        for ReasonEntry { name, .. } in CONDITIONS.iter().chain(EVENTS) {
            assert!(
                name.starts_with(|c: char| c.is_ascii_uppercase()) && name.chars().all(char::is_alphanumeric),
                "{name}"
            );
        }
    }

    #[test]
    fn every_label_and_annotation_of_this_crate_is_listed() {
        let listed: BTreeSet<&str> = LABELS.iter().chain(ANNOTATIONS).map(|e| e.name).collect();
        let source = include_str!("names.rs");
        let texts =
            source.lines().filter(|line| line.starts_with("pub const ")).filter_map(|line| line.split('"').nth(1));
        let other = [names::FINALIZER, names::CANARY_RESOURCES, names::NODE_DEVICES_READY];
        for name in texts.filter(|text| text.starts_with("gputenancy.io/") && !other.contains(text)) {
            assert!(listed.contains(name), "{name} is missing in the table");
        }
    }
}
