//! kube-proxy's own ports: health for load balancers, a health check port per Service that has one, metrics.
//!
//! Invariant: only snapshots answer requests, so no request delays the engine. Health, metrics and the Services'
//! ports each have their own thread and connection slots, and each Service's port has its own slots. Idle clients
//! never keep out a new one, and clients that fill one port affect no other. A port in use by another process is
//! reported and retried, and stops nothing.

mod handlers;
mod health;
mod health_publisher;
mod health_requests;
mod limits;
mod listeners;
mod local;
mod metrics;
mod server;
mod service_ports;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use tokio::sync::watch;

use crate::readings::{Purpose, Readings};
use handlers::{HealthHandler, MetricsHandler};
use health::Health;
use health_publisher::HealthPublisher;
use health_requests::HealthRequests;
use holdfast_config::Config;
use service_ports::Plan;

/// Serves the ports that the configuration has at the start, until the publisher of snapshots is gone.
pub async fn run(config: watch::Receiver<Arc<Config>>, readings: Readings) {
    match PortThreads::start(config, readings) {
        Ok((_ports, follower)) => follower.run().await,
        Err(error) => {
            tracing::error!(%error, "cannot serve kube-proxy's ports: no thread can be started; services are still served");
        }
    }
}

/// The threads that serve. They run as long as this lives.
#[derive(Debug)]
struct PortThreads {
    stop: watch::Sender<bool>,
    threads: Vec<JoinHandle<()>>,
}

impl PortThreads {
    fn start(
        config: watch::Receiver<Arc<Config>>,
        readings: Readings,
    ) -> io::Result<(Self, HealthPublisher)> {
        let ports = config.borrow().kube_proxy;
        let closed = Arc::clone(&readings.closed_ports);
        let (health_out, health) = watch::channel(Health::default());
        let (plans_out, plans) = watch::channel(Plan::default());
        let asked = Arc::new(HealthRequests::default());
        let mut started = Self { stop: watch::channel(false).0, threads: Vec::new() };
        if let Some(address) = ports.health {
            let door = HealthHandler { health: health.clone(), requests: Arc::clone(&asked) };
            let told = (Purpose::Health, Arc::clone(&closed));
            started.spawn("proxy-health", server::open_and_serve(address, told, Arc::new(door)))?;
            started.spawn("service-health", listeners::run(plans, health, Arc::clone(&closed)))?;
        }
        if let Some(address) = ports.metrics {
            let door = MetricsHandler { readings: readings.clone(), requests: asked };
            let told = (Purpose::Metrics, closed);
            started.spawn("proxy-metrics", server::open_and_serve(address, told, Arc::new(door)))?;
        }
        Ok((started, HealthPublisher { readings, config, health: health_out, plans: plans_out }))
    }

    fn spawn(&mut self, name: &str, work: impl Future<Output = ()> + Send + 'static) -> io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let mut stopping = self.stop.subscribe();
        let work = move || {
            runtime.block_on(async {
                tokio::select! {
                    _ = stopping.wait_for(|stop| *stop) => {}
                    () = work => {}
                }
            });
        };
        self.threads.push(std::thread::Builder::new().name(name.to_owned()).spawn(work)?);
        Ok(())
    }
}

/// Ends the threads at once: every response is written in one piece.
impl Drop for PortThreads {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of kube-proxy's ports panicked");
            }
        }
    }
}
