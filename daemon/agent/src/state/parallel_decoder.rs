//! Decodes the services' records on several threads: on a node that boots without an apiserver, clients wait for
//! that.
//!
//! Invariant: the services keep the order of their records, however many threads there are. The caller's thread
//! decodes a small file alone, and any file if the system provides no thread.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::thread::{Builder, Scope};

use holdfast_core::snapshot::ServiceView;

use super::codec;

/// The most useful threads: the caller's own reads the file for them.
const THREADS_MAX: usize = 4;

/// The bytes of records decoded in one batch, some milliseconds of work.
const BATCH_BYTES: usize = 1 << 18;

/// How many batches may wait for a thread, besides the current one.
const WAITING_MAX: usize = 2;

/// A service for each record; `None` if the record is invalid.
type DecodedServices = Vec<Option<Arc<ServiceView>>>;

/// Records, one after the other.
#[derive(Default)]
struct Batch {
    bytes: Vec<u8>,
    lengths: Vec<usize>,
}

impl Batch {
    fn decode(&self) -> DecodedServices {
        let mut rest = self.bytes.as_slice();
        let record = |length: &usize| {
            let (record, behind) = rest.split_at_checked(*length)?;
            rest = behind;
            codec::decode_service(record)
        };
        self.lengths.iter().map(record).collect()
    }
}

/// A thread, and its results.
struct Decoder {
    batches: SyncSender<Batch>,
    done: Receiver<DecodedServices>,
}

impl Decoder {
    fn start<'scope>(scope: &'scope Scope<'scope, '_>) -> std::io::Result<Self> {
        let (batches, waiting) = sync_channel::<Batch>(WAITING_MAX);
        let (out, done) = channel();
        let work = move || {
            // The receiver is gone if reading the file failed.
            let _ = waiting.iter().try_for_each(|batch| out.send(batch.decode()));
        };
        Builder::new().name("decoding".to_owned()).spawn_scoped(scope, work)?;
        Ok(Self { batches, done })
    }
}

/// All threads, and the next batch.
pub(super) struct DecoderPool<'scope, 'env> {
    scope: &'scope Scope<'scope, 'env>,
    /// `None` until they are started.
    decoders: Option<Vec<Decoder>>,
    /// How many batches were sent to them.
    batches_sent: usize,
    batch: Batch,
    /// The services that the caller's own thread decoded, without other threads.
    decoded_locally: DecodedServices,
}

impl<'scope, 'env> DecoderPool<'scope, 'env> {
    pub(super) fn new(scope: &'scope Scope<'scope, 'env>) -> Self {
        Self { scope, decoders: None, batches_sent: 0, batch: Batch::default(), decoded_locally: Vec::new() }
    }

    pub(super) fn push(&mut self, record: &[u8]) {
        self.batch.bytes.extend_from_slice(record);
        self.batch.lengths.push(record.len());
        if self.batch.bytes.len() >= BATCH_BYTES {
            self.send_batch();
        }
    }

    fn send_batch(&mut self) {
        let batch = std::mem::take(&mut self.batch);
        let scope = self.scope;
        let decoders = self.decoders.get_or_insert_with(|| {
            let threads = std::thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
            (0..threads).map_while(|_| Decoder::start(scope).ok()).collect()
        });
        let turn = self.batches_sent.checked_rem(decoders.len()).and_then(|at| decoders.get(at));
        match turn {
            Some(decoder) => {
                self.batches_sent += 1;
                // A thread ends only after its last batch.
                let _ = decoder.batches.send(batch);
            }
            None => self.decoded_locally.extend(batch.decode()),
        }
    }

    /// All services, in the order of their records.
    pub(super) fn finish(self) -> DecodedServices {
        let Self { decoders, batches_sent: given, batch, decoded_locally: own, .. } = self;
        let decoders = decoders.unwrap_or_default();
        let done: Vec<_> = decoders.into_iter().map(|decoder| decoder.done).collect();
        let in_turn = done.iter().cycle().take(given);
        // A thread without a result has lost its records.
        let theirs = in_turn.flat_map(|done| done.recv().unwrap_or_else(|_| vec![None]));
        theirs.chain(own).chain(batch.decode()).collect()
    }
}

#[cfg(test)]
mod tests;
