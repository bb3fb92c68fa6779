//! Tests at a real control plane: upstream's servers, and holdfast's reaction. Needs root and the servers that
//! `scripts/peers.sh` builds, so the `root` feature selects it.

#[cfg(test)]
mod daemon_actions;
#[cfg(test)]
mod daemon_away;
#[cfg(test)]
mod daemon_encodings;
#[cfg(test)]
mod daemon_events;
#[cfg(test)]
mod daemon_first_look;
#[cfg(test)]
mod daemon_hold;
#[cfg(test)]
mod daemon_incident;
#[cfg(test)]
mod daemon_ports;
#[cfg(test)]
mod daemon_restored;
#[cfg(test)]
mod daemon_reused;
#[cfg(test)]
mod daemon_table;
#[cfg(test)]
mod daemon_vip;
#[cfg(test)]
mod diagnosed;
#[cfg(test)]
mod diagnosed_balancer;
#[cfg(test)]
mod diagnosed_endpoints;
#[cfg(test)]
mod diagnosed_flows;
#[cfg(test)]
mod diagnosed_host;
#[cfg(test)]
mod diagnosed_news;
#[cfg(test)]
mod diagnosed_traffic;
#[cfg(test)]
mod grpc_checks;
#[cfg(test)]
mod guide;
#[cfg(test)]
mod imported;
#[cfg(test)]
mod packets;
#[cfg(test)]
mod packets_random;
#[cfg(test)]
mod peers_access;
#[cfg(test)]
mod peers_life;
#[cfg(test)]
mod peers_slices;
#[cfg(test)]
mod prometheus;
#[cfg(test)]
mod provoked;
#[cfg(test)]
mod provoked_ranges;
#[cfg(test)]
mod stage;
