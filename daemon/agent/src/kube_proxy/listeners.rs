//! Opens and closes the health check ports of Services by the plan.
//!
//! Invariant: the plan's addresses are open, except those in use by other processes, which are retried at their own
//! pace. A port that passes from one Service to another stays open.

use std::collections::BTreeMap;
use std::mem;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::handlers::{ServiceCheck, ServiceHandler};
use super::health::Health;
use super::limits;
use super::server::{self, ConnectionLimit, Families};
use super::service_ports::Plan;
use crate::readings::{ClosedPort, ClosedPorts, Purpose};

/// Follows the plans until the planner is gone.
pub(super) async fn run(
    mut plans: watch::Receiver<Plan>,
    health: watch::Receiver<Health>,
    closed: Arc<ClosedPorts>,
) {
    let limit = ConnectionLimit {
        reserved: limits::SERVICE_CONNECTIONS_MIN,
        max: limits::CONNECTIONS_MAX,
        shared: Arc::new(Semaphore::new(limits::SHARED_CONNECTIONS_MAX)),
    };
    let mut listeners = ServiceListeners { open: BTreeMap::new(), failed: BTreeMap::new(), health, limit };
    loop {
        let plan = plans.borrow_and_update().clone();
        listeners.apply_plan(&plan, Instant::now()).await;
        let failed = listeners.failed.values().map(|failed| failed.port.clone());
        let at = holdfast_host::clock::now().seconds();
        closed.report_service_ports(failed.chain(plan.refused).collect(), plan.more, at);
        tokio::select! {
            changed = plans.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(limits::REOPEN_PAUSE), if !listeners.failed.is_empty() => {}
        }
    }
}

struct ServiceListeners {
    open: BTreeMap<SocketAddr, ServiceListener>,
    failed: BTreeMap<SocketAddr, FailedPort>,
    health: watch::Receiver<Health>,
    limit: ConnectionLimit,
}

struct ServiceListener {
    check: watch::Sender<ServiceCheck>,
    task: JoinHandle<()>,
}

impl ServiceListener {
    /// Closes the listener. Afterwards its address is free, for another socket of this daemon too.
    async fn close(mut self) {
        self.task.abort();
        let _ = (&mut self.task).await;
    }
}

/// The connections of a listener end with it.
impl Drop for ServiceListener {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct FailedPort {
    port: ClosedPort,
    retry_at: Instant,
}

impl ServiceListeners {
    async fn apply_plan(&mut self, plan: &Plan, now: Instant) {
        let (open, gone) =
            mem::take(&mut self.open).into_iter().partition(|(address, _)| plan.open.contains_key(address));
        self.open = open;
        for (_, listener) in <BTreeMap<_, ServiceListener>>::into_iter(gone) {
            listener.close().await;
        }
        self.failed.retain(|address, failed| {
            let wants = plan.open.get(address);
            wants.is_some_and(|check| failed.port.service.as_ref() == Some(&check.service))
        });
        for (address, check) in &plan.open {
            match self.open.get(address) {
                Some(listener) => _ = listener.check.send_if_modified(|it| replace_check(it, check)),
                None if self.failed.get(address).is_some_and(|failed| now < failed.retry_at) => {}
                None => self.open(*address, check, now),
            }
        }
    }

    fn open(&mut self, address: SocketAddr, check: &ServiceCheck, now: Instant) {
        let listener = match server::bind_listener(address, Families::Own) {
            Ok(listener) => listener,
            Err(error) => {
                let purpose = Purpose::Service;
                let service = Some(check.service.clone());
                let port =
                    ClosedPort { purpose, address, service, reason: server::describe_bind_error(&error) };
                self.failed.insert(address, FailedPort { port, retry_at: now + limits::REOPEN_PAUSE });
                return;
            }
        };
        self.failed.remove(&address);
        let (check, checks) = watch::channel(check.clone());
        let answerer = Arc::new(ServiceHandler { check: checks, health: self.health.clone() });
        let task = tokio::spawn(server::serve(listener, self.limit.clone(), answerer));
        self.open.insert(address, ServiceListener { check, task });
    }
}

fn replace_check(before: &mut ServiceCheck, now: &ServiceCheck) -> bool {
    let changed = before != now;
    if changed {
        before.clone_from(now);
    }
    changed
}
