// Sizing advice: the purchases that the daemon recommends for a volume, from its miss-ratio curves.

import type { AdvicePurchase, AdviceQuota, AdviceStep, VolumeAdvice } from './types';
import { bytes, capacity } from './units';

export type Tier = 'memory' | 'flash';

/** A purchase that is worth making for one volume. */
export interface Recommendation {
  volume: string;
  tier: Tier;
  /** Bytes of the volume in this tier at present. */
  currentBytes: number;
  /** Hit ratio of memory and flash together once both are filled, and mean read latency with it. */
  currentHits: number;
  currentLatencyUs: number;
  purchase: AdvicePurchase;
  confidence: string;
  /** Sizes of the tier above the present one with the hit ratio of its curve, ascending. */
  steps: AdviceStep[];
  /** The volume's quota in the tier; null without one. */
  quota: AdviceQuota | null;
}

/** A quota that prevents a worthwhile gain. */
export interface BindingQuota {
  volume: string;
  tier: Tier;
  quota: AdviceQuota;
  /** The effect of raising it; its size is 0 if that needs no purchase. */
  raise: AdvicePurchase;
}

/** Why a volume has no estimate yet; null where it has one. */
export function unavailableReason({ nothing, confidence }: VolumeAdvice): string | null {
  if (nothing !== null) return nothing;
  if (confidence === 'few-accesses') return 'fewer than 10,000 block accesses or 1,000 reads';
  if (confidence === 'deviation') {
    return 'the measured hit ratio does not match the curve: the load has changed, or the cache is not warm yet';
  }
  return null;
}

/** At most one recommendation per tier; none where no purchase is worth it. */
export function recommendationsOf(advice: VolumeAdvice): Recommendation[] {
  return (['memory', 'flash'] as const).flatMap((tier) => {
    const { purchase, quota, today, steps } = advice[tier];
    if (purchase === null) return [];
    const currentBytes = today?.size_bytes ?? 0;
    return {
      volume: advice.volume,
      tier,
      currentBytes,
      currentHits: purchase.hit_ratio_before,
      currentLatencyUs: purchase.latency_before_us,
      purchase,
      confidence: advice.confidence,
      steps: steps.filter(({ size_bytes }) => size_bytes > currentBytes),
      quota,
    };
  });
}

/** At most one binding quota per tier. */
export function bindingQuotasOf(advice: VolumeAdvice): BindingQuota[] {
  return (['memory', 'flash'] as const).flatMap((tier) => {
    const { quota } = advice[tier];
    return quota && quota.raise ? { volume: advice.volume, tier, quota, raise: quota.raise } : [];
  });
}

/** A purchase with its size as it is sold. */
export const sizeText = (tier: Tier, sizeBytes: number) =>
  tier === 'flash' ? `${capacity(sizeBytes)} SSD` : `${bytes(sizeBytes)} more`;

/** What binds, and the change that removes it, as `hotset advise` prints them. */
export function quotaTexts({ tier, quota, raise }: BindingQuota): { limit: string; change: string } {
  const isFlashDisabled = quota.setting === 'flash';
  const change = isFlashDisabled ? 'set flash = true and restart' : `raise ${quota.setting} (now ${quota.value})`;
  const article = tier === 'flash' ? 'a ' : '';
  const purchase = raise.size_bytes === 0 ? '' : `, with ${article}${sizeText(tier, raise.size_bytes)}`;
  return { limit: isFlashDisabled ? 'flash = false' : `${tier} quota`, change: change + purchase };
}

/** The note of a size that the quota does not permit; empty for others. */
export function stepNote(quota: AdviceQuota | null, { size_bytes }: AdviceStep): string {
  if (quota === null || quota.limit_bytes === null || size_bytes <= quota.limit_bytes) return '';
  return quota.setting === 'flash' ? 'flash = false' : `above ${quota.setting} = ${quota.value}`;
}

/** Array reads saved per second and GiB bought. */
export const savedPerGib = ({ purchase }: Recommendation) =>
  (purchase.saved_reads_per_s ?? 0) / (purchase.size_bytes / 2 ** 30);
