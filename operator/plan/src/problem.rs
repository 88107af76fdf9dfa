//! The problems of a plan: a type for controllers, and a message for people with object, number and remedy.

use std::collections::BTreeMap;

use gputenancy_crds::{
    Isolation, SharingMode,
    reasons::{self, Reason},
    words::counted,
};

use gputenancy_crds::ids::{NodeName, PoolName, ProfileName, TenantName};

/// A problem that a person has to solve, or to wait for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum Problem {
    /// A tenant is guaranteed a profile that does not exist.
    #[error(
        "tenant {tenant} is guaranteed profile {profile}, which does not exist: create GpuProfile {profile} or correct spec.gpus"
    )]
    ProfileNotFound {
        /// The tenant.
        tenant: TenantName,
        /// The missing profile.
        profile: ProfileName,
    },
    /// A pool lists a profile that does not exist.
    #[error(
        "pool {pool} lists profile {profile}, which does not exist: create GpuProfile {profile} or correct the pool's spec"
    )]
    PoolProfileNotFound {
        /// The pool.
        pool: PoolName,
        /// The missing profile.
        profile: ProfileName,
    },
    /// A tenant is not trusted enough for a profile.
    #[error(
        "tenant {tenant} (trust {has}) may not use profile {profile} (trust {needs} or higher): raise the tenant's spec.trust or choose a profile isolated by hardware"
    )]
    TrustTooLow {
        /// The tenant.
        tenant: TenantName,
        /// The profile.
        profile: ProfileName,
        /// The tenant's trust.
        has: String,
        /// The profile's trust.
        needs: String,
    },
    /// A tenant is guaranteed a share of a GPU, and has not acknowledged what shares do not isolate.
    #[error(
        "tenant {tenant} may not use profile {profile}, a share of a GPU (device.{}), before it is acknowledged: write in spec.sharing.acknowledgedBy of GpuTenant {tenant} the person or group that accepts that {}; or choose a whole GPU or a MIG profile",
        .mode.field(),
        .mode.accepts()
    )]
    SharingNotAcknowledged {
        /// The tenant.
        tenant: TenantName,
        /// The profile.
        profile: ProfileName,
        /// How the GPU is shared.
        mode: SharingMode,
    },
    /// No board of a pool has a profile that the pool lists.
    #[error(
        "pool {pool} lists profile {profile}, but none of its boards ({products}) can be partitioned into it: remove it from spec.profiles or choose one that these boards offer{offers}"
    )]
    ProfileNotSupported {
        /// The profile.
        profile: ProfileName,
        /// The pool.
        pool: PoolName,
        /// The pool's boards.
        products: String,
        /// The devices that the boards offer, as the end of the sentence.
        offers: String,
    },
    /// Two pools or more select the same node.
    #[error(
        "node {node} is selected by pools {}: no pool manages it, and a change in progress there is only completed or cancelled; \
         narrow spec.nodeSelector so that one pool selects it",
        list(.pools)
    )]
    NodeInTwoPools {
        /// The node.
        node: NodeName,
        /// The pools, sorted.
        pools: Vec<PoolName>,
    },
    /// A guarantee exceeds what the fleet can have.
    #[error("tenant {tenant} is guaranteed {wanted} of profile {profile} and gets {got}: {why}{help}")]
    Shortage {
        /// The tenant.
        tenant: TenantName,
        /// The profile.
        profile: ProfileName,
        /// Devices guaranteed.
        wanted: u32,
        /// Devices that exist for it.
        got: u32,
        /// Pools that list the profile.
        pools: Vec<PoolName>,
        /// The reason and the remedy.
        why: String,
        /// Another remedy, which names pods of any tenant, as the rest of the sentence; may be empty.
        help: String,
    },
    /// A fixed layout does not fit on a GPU.
    #[error(
        "pool {pool}: the fixed layout for GPUs \"{gpus}\" ({layout}) does not fit on GPU {index} of node {node} ({product}): {why}"
    )]
    FixedDoesNotFit {
        /// The pool.
        pool: PoolName,
        /// The index expression.
        gpus: String,
        /// The layout as written.
        layout: String,
        /// The node.
        node: NodeName,
        /// The GPU's index.
        index: i32,
        /// The board.
        product: String,
        /// The remedy.
        why: String,
    },
    /// A fixed layout would remove the last GPU of a profile in use.
    #[error(
        "pool {pool}: GPU {index} of node {node} keeps its layout, because it is the last with {profile}, which pods use: free it, give {profile} another GPU, or set spec.disruption.allowOutage: true"
    )]
    Outage {
        /// The pool.
        pool: PoolName,
        /// The profile in use.
        profile: ProfileName,
        /// The node.
        node: NodeName,
        /// The GPU's index.
        index: i32,
    },
    /// A pool that the agent does not partition and advertise lists a share, which only the agent serves.
    #[error(
        "pool {pool} lists profile {profile}, which is a share of a GPU: {why}; or set spec.advertiser and spec.partitioner of the pool to Agent"
    )]
    ShareNotServed {
        /// The profile.
        profile: ProfileName,
        /// The pool.
        pool: PoolName,
        /// The reason, and what to write instead.
        why: String,
    },
    /// Nodes of a pool cannot limit the shares of a profile as the pool demands.
    #[error(
        "pool {pool} offers no shares of profile {profile} on {}: spec.enforcement.minimum of the pool is {minimum}, and there {}; or lower the minimum, or use profiles with device.mig or device.whole",
        count(.nodes.len()),
        by_cause(.nodes)
    )]
    EnforcementTooWeak {
        /// The profile.
        profile: ProfileName,
        /// The pool.
        pool: PoolName,
        /// The demand of the pool.
        minimum: Isolation,
        /// The means that limits its shares instead, and why, by node.
        nodes: BTreeMap<NodeName, (Isolation, String)>,
    },
    /// No board of a pool has room for one share of a profile.
    #[error(
        "pool {pool} lists profile {profile}, but none of its boards ({products}) has room for one share: each needs 640 MiB for its context besides its own memory, and the boards have {largest} MiB at most; MPS has 48 clients at most; write less memory or fewer replicas in a new profile"
    )]
    ShareNotSupported {
        /// The profile.
        profile: ProfileName,
        /// The pool.
        pool: PoolName,
        /// The pool's boards.
        products: String,
        /// Usable memory of the largest board, in MiB.
        largest: i64,
    },
    /// NVIDIA's device plugin advertises devices under NVIDIA's resources only.
    #[error(
        "pool {pool} has spec.advertiser: NvidiaDevicePlugin, which offers the devices of profile {profile} as {offers} and never as {resource}: set spec.resourceName of GpuProfile {profile} to {offers}, or spec.advertiser of the pool to Agent"
    )]
    ResourceNameNotSupported {
        /// The profile.
        profile: ProfileName,
        /// The pool.
        pool: PoolName,
        /// The resource that the profile asks for.
        resource: String,
        /// The resource that the plugin offers.
        offers: String,
    },
    /// A profile's resource does not agree with the pool's strategy.
    #[error("pool {pool} does not offer profile {profile}: {why}")]
    StrategyMismatch {
        /// The profile.
        profile: ProfileName,
        /// The pool.
        pool: PoolName,
        /// The reason, and what to write instead.
        why: String,
    },
    /// Two profiles are advertised under one resource.
    #[error(
        "profile {profile} uses resource {resource}, which profile {by} has already, so that no pool offers it: set another spec.resourceName of GpuProfile {profile}"
    )]
    ResourceNameConflict {
        /// The newer profile.
        profile: ProfileName,
        /// The resource.
        resource: String,
        /// The older profile.
        by: ProfileName,
        /// Pools that list the newer profile, sorted.
        pools: Vec<PoolName>,
    },
    /// Another component owns the GPUs of a pool's node.
    #[error("node {node} has another owner of its GPUs, {by} ({sign}): nothing is changed there; {remedy}")]
    ForeignPartitioner {
        /// The node.
        node: NodeName,
        /// Its pool.
        pool: PoolName,
        /// The other owner.
        by: &'static str,
        /// The evidence.
        sign: String,
        /// The remedy, as a clause.
        remedy: String,
    },
    /// A tenant lists a namespace that is not its own.
    #[error(
        "tenant {tenant} lists namespace {namespace}, {}; {}choose another name in spec.namespaces, or see condition NamespacesReady of GpuTenant {tenant}",
        .owner.as_ref().map_or_else(|| "which exists and is not the tenant's".to_owned(), |owner| format!("which belongs to tenant {owner}")),
        if *.served { "" } else { "no device is planned for it, as it has no namespace of its own: " }
    )]
    NamespaceConflict {
        /// The tenant.
        tenant: TenantName,
        /// The namespace.
        namespace: String,
        /// The tenant that has it; `None`: no tenant has it.
        owner: Option<TenantName>,
        /// The tenant has another namespace, so that its guarantees count.
        served: bool,
    },
    /// A field of an object is invalid, although the API server accepted it.
    #[error("{object}: {what}")]
    InvalidSpec {
        /// Kind and name.
        object: String,
        /// The field, and what to write.
        what: String,
    },
}

impl Problem {
    /// The condition's reason.
    pub fn reason(&self) -> Reason {
        match self {
            Self::ProfileNotFound { .. } | Self::PoolProfileNotFound { .. } => reasons::PROFILE_NOT_FOUND,
            Self::TrustTooLow { .. } => reasons::TRUST_TOO_LOW,
            Self::SharingNotAcknowledged { .. } => reasons::SHARING_NOT_ACKNOWLEDGED,
            Self::ProfileNotSupported { .. } | Self::ShareNotSupported { .. } => reasons::PROFILE_NOT_SUPPORTED,
            Self::ResourceNameNotSupported { .. } | Self::StrategyMismatch { .. } => {
                reasons::RESOURCE_NAME_NOT_SUPPORTED
            }
            Self::NodeInTwoPools { .. } => reasons::POOL_OVERLAP,
            Self::Shortage { .. } => reasons::SHORTAGE,
            Self::FixedDoesNotFit { .. } => reasons::FIXED_DOES_NOT_FIT,
            Self::Outage { .. } => reasons::OUTAGE_REFUSED,
            Self::ShareNotServed { .. } => reasons::NOT_SERVED,
            Self::EnforcementTooWeak { .. } => reasons::ENFORCEMENT_TOO_WEAK,
            Self::ResourceNameConflict { .. } => reasons::RESOURCE_NAME_CONFLICT,
            Self::ForeignPartitioner { .. } => reasons::FOREIGN_PARTITIONER,
            Self::NamespaceConflict { .. } => reasons::NAMESPACE_CONFLICT,
            Self::InvalidSpec { .. } => reasons::INVALID_SPEC,
        }
    }

    /// The sentence for the status of a tenant, in which no pod of another tenant is named.
    pub fn for_tenant(&self) -> String {
        let Self::Shortage { tenant, profile, wanted, got, pools, why, help } = self else { return self.to_string() };
        let own = Self::Shortage {
            tenant: tenant.clone(),
            profile: profile.clone(),
            wanted: *wanted,
            got: *got,
            pools: Vec::new(),
            why: why.clone(),
            help: String::new(),
        };
        if help.is_empty() {
            return own.to_string();
        }
        let pools = pools.iter().map(PoolName::as_str).collect::<Vec<_>>().join(", ");
        format!(
            "{own}; the platform's administrators see in status.unsatisfied of GpuPool {pools} which pods could be moved"
        )
    }

    /// Whether it concerns this pool.
    pub fn concerns_pool(&self, name: &str) -> bool {
        match self {
            Self::PoolProfileNotFound { pool, .. }
            | Self::ProfileNotSupported { pool, .. }
            | Self::ShareNotSupported { pool, .. }
            | Self::ShareNotServed { pool, .. }
            | Self::EnforcementTooWeak { pool, .. }
            | Self::ResourceNameNotSupported { pool, .. }
            | Self::StrategyMismatch { pool, .. }
            | Self::ForeignPartitioner { pool, .. }
            | Self::FixedDoesNotFit { pool, .. }
            | Self::Outage { pool, .. } => pool.as_str() == name,
            Self::NodeInTwoPools { pools, .. }
            | Self::Shortage { pools, .. }
            | Self::ResourceNameConflict { pools, .. } => pools.iter().any(|p| p.as_str() == name),
            _ => false,
        }
    }

    /// Whether it concerns this profile.
    pub fn concerns_profile(&self, name: &str) -> bool {
        match self {
            Self::ProfileNotSupported { profile, .. }
            | Self::ShareNotSupported { profile, .. }
            | Self::ResourceNameConflict { profile, .. } => profile.as_str() == name,
            _ => false,
        }
    }
}

/// Most nodes that a message names for one cause.
const MOST_NAMED: usize = 16;

fn count(nodes: usize) -> String {
    counted(nodes, "node")
}

/// Nodes by what limits their shares and why, such as `it is None on gpu-1, gpu-2 (switched off: set …)`.
fn by_cause(nodes: &BTreeMap<NodeName, (Isolation, String)>) -> String {
    let mut causes: BTreeMap<&(Isolation, String), Vec<&str>> = BTreeMap::new();
    for (node, cause) in nodes {
        causes.entry(cause).or_default().push(node.as_str());
    }
    let one = |((means, why), nodes): (&(Isolation, String), Vec<&str>)| {
        let named = nodes.iter().take(MOST_NAMED).copied().collect::<Vec<_>>().join(", ");
        let more = nodes.len().saturating_sub(MOST_NAMED);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let why = if why.is_empty() { String::new() } else { format!(" ({why})") };
        format!("they are limited by {means} on {named}{more}{why}")
    };
    causes.into_iter().map(one).collect::<Vec<_>>().join("; ")
}

fn list(names: &[PoolName]) -> String {
    names.iter().map(PoolName::as_str).collect::<Vec<_>>().join(", ")
}
