//! Labels and annotations of vCluster 0.36.1 on objects of the host: of its chart, and of pods that its syncer makes.
//!
//! The syncer overwrites the annotations `object-*` from the virtual pod at every sync (`addHostAnnotations` in
//! `pkg/util/translate/translate.go`), so the tenant cannot forge them. It fills `vcluster.loft.sh/name`, `/namespace` and `/uid` only
//! where they are empty (`pkg/controllers/resources/pods/translate/translator.go`), so the tenant can: they are not defined here.

/// Label: name of the virtual cluster. `MarkerLabel` in `pkg/util/translate/types.go`.
///
/// A label of the virtual pod with this key gets another key on the host pod (`LabelsToTranslate` in
/// `pkg/util/translate/single_namespace.go`); the same holds for [`VIRTUAL_NAMESPACE`] and [`RELEASE`].
pub const MANAGED_BY: &str = "vcluster.loft.sh/managed-by";
/// Label: virtual namespace. `NamespaceLabel` in `pkg/util/translate/types.go`.
pub const VIRTUAL_NAMESPACE: &str = "vcluster.loft.sh/namespace";
/// Label: name of the Helm release, which is that of the virtual cluster. `VClusterReleaseLabel` in `pkg/util/translate/types.go`.
pub const RELEASE: &str = "release";
/// Label: the application. `chart/templates/statefulset.yaml`.
pub const APP: &str = "app";
/// Value of [`APP`] on the control plane's pods. `chart/templates/statefulset.yaml`.
pub const CONTROL_PLANE_APP: &str = "vcluster";
/// Value of [`APP`] on the objects of an etcd of its own. `chart/templates/etcd-statefulset.yaml`.
pub const ETCD_APP: &str = "vcluster-etcd";
/// Label: `vcluster-` and the version. `chart/templates/statefulset.yaml`.
pub const CHART: &str = "chart";
/// Annotation on a workload that `vcluster pause` has scaled to zero; `true`. `pkg/lifecycle`.
pub const PAUSED: &str = "loft.sh/paused";

/// Annotation: name of the virtual pod. `NameAnnotation` in `pkg/util/translate/types.go`.
pub const OBJECT_NAME: &str = "vcluster.loft.sh/object-name";
/// Annotation: namespace of the virtual pod. `NamespaceAnnotation` in `pkg/util/translate/types.go`.
pub const OBJECT_NAMESPACE: &str = "vcluster.loft.sh/object-namespace";
/// Annotation: UID of the virtual pod. `UIDAnnotation` in `pkg/util/translate/types.go`.
pub const OBJECT_UID: &str = "vcluster.loft.sh/object-uid";
/// Annotation: group, version and kind. `KindAnnotation` in `pkg/util/translate/types.go`.
pub const OBJECT_KIND: &str = "vcluster.loft.sh/object-kind";
/// Annotation: name of the host pod. `HostNameAnnotation` in `pkg/util/translate/types.go`.
pub const OBJECT_HOST_NAME: &str = "vcluster.loft.sh/object-host-name";
/// Annotation: namespace of the host pod. `HostNamespaceAnnotation` in `pkg/util/translate/types.go`.
pub const OBJECT_HOST_NAMESPACE: &str = "vcluster.loft.sh/object-host-namespace";
/// Value of [`OBJECT_KIND`] on pods: `GroupVersionKind.String()` in `k8s.io/apimachinery/pkg/runtime/schema`.
pub const POD_KIND: &str = "/v1, Kind=Pod";

/// All labels that are read.
pub const LABELS: [&str; 4] = [MANAGED_BY, VIRTUAL_NAMESPACE, RELEASE, APP];
/// All annotations that are read.
pub const ANNOTATIONS: [&str; 6] =
    [OBJECT_NAME, OBJECT_NAMESPACE, OBJECT_UID, OBJECT_KIND, OBJECT_HOST_NAME, OBJECT_HOST_NAMESPACE];
